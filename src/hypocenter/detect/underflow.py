"""Gradients that float16 can hardly hold any more, read off the exponent histograms of what was recorded in float16.

The smallest float16 is 2^-24 (IEEE 754 binary16): below 2^-25 a value becomes 0. What was lost cannot be seen, but the
values next to it can: when a tenth of a tensor's nonzero values lie in the last two octaves before 0, where one or two
bits of precision are left, about as many have been lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.detect.window import Window
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Reading
from hypocenter.summary.exponents import n_below

LAST_OCTAVES = -22  # exponents below this: 2^-24 and 2^-23
LEAST_VALUES = 32  # nonzero values that a histogram must have counted to be believed
STARVED = 0.1  # share of a tensor's nonzero values in the last octaves
HALF_OF_ALL = 0.5  # share of the tensors that must be starved
HEADROOM_OCTAVES = 8.0  # free above the largest gradient: a higher scale would do no harm
PERSISTENT = 2  # recorded steps before this one in which the same tensor was starved
LARGEST_HALF = FORMATS["float16"].max
SMALLEST_HALF = FORMATS["float16"].smallest_subnormal


@dataclass(frozen=True, slots=True, kw_only=True)
class Starved:
    """Gradients of which much is next to nothing, and how much larger everything could be."""

    worst: Reading
    share: float  # of the worst one's nonzero values in the last two octaves
    n: int  # tensors that are starved
    n_of: int  # tensors that were looked at
    octaves: int  # by which all gradients could be larger without overflow

    def sentence(self) -> str:
        """Say how much is next to nothing, and where most of it is."""
        return (
            f"in {self.n} of {self.n_of} float16 gradients a tenth or more of the nonzero values lie below 2^-22; "
            f"in {self.worst.site} {self.worst.port} {self.share:.0%}: about as many became 0"
        )


def starved(window: Window) -> Starved | None:
    """Return what is starved if most float16 gradients of this and earlier steps are near the format's lower end."""
    no_gradient = ("value", "out[")  # the grad norm; what backward computes from values of forward alone
    rows = (r for r in window.of("backward", "grad") if r.dtype == "float16" and not r.port.startswith(no_gradient))
    counted = [(r, _share(r)) for r in rows if _is_telling(r)]
    if not counted:
        return None
    hungry = [(r, share) for r, share in counted if share >= STARVED]
    largest = max(r.summary.absmax for r, _ in counted)
    octaves = math.log2(LARGEST_HALF / largest)
    if len(hungry) < max(2, HALF_OF_ALL * len(counted)) or octaves < HEADROOM_OCTAVES:
        return None
    worst, share = max(hungry, key=lambda pair: pair[1])
    if not _lasts(window.history.rows(worst.site, worst.port)):
        return None
    return Starved(worst=worst, share=share, n=len(hungry), n_of=len(counted), octaves=math.floor(octaves))


def finding(window: Window, found: Starved, *, title: str, room: str) -> Finding:
    """Return the finding that HC203 makes of it.

    Args:
        title: of the finding.
        room: what the free octaves allow.
    """
    return Finding(
        code="HC203",
        kind="underflow",
        severity="warning",
        title=title,
        step=window.step,
        rank=window.rank,
        phase=found.worst.phase,
        site=found.worst.site,
        port=found.worst.port,
        cause="grad-underflow",
        confidence="likely",
        limit=SMALLEST_HALF,
        actual=found.worst.summary.absmin,
        why=(found.sentence(), f"the largest gradient leaves {found.octaves} octaves to 65504: {room}"),
    )


def _lasts(earlier: Sequence[Reading]) -> bool:
    last = earlier[-PERSISTENT:]
    return len(last) == PERSISTENT and all(_is_telling(r) and _share(r) >= STARVED for r in last)


def _is_telling(reading: Reading) -> bool:
    return not reading.summary.n_nonfinite and sum(reading.summary.hist) >= LEAST_VALUES


def _share(reading: Reading) -> float:
    s = reading.summary
    return n_below(LAST_OCTAVES, s.hist_first, s.hist) / sum(s.hist)
