"""The law of determinism: how far replays are from the run, and whether one is further off than the others.

For HC232.
"""

from __future__ import annotations

import math

from hypocenter.detect.law_rows import NOT_REPEATED, SITE
from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.session.observers.optimizer_rows import number_row

UNFAITHFUL = 1e-3  # relative: a replay whose loss is farther off does not repeat the run
LOOKS, LOOKS_OF_NOISE = 4, 8  # micro-batches, before one that is held against them: if all but repeated, and if not
FLOOR, ROUNDINGS = 4.0, 32.0
_ROUNDED = ROUNDINGS * FORMATS["float32"].eps


class UnlikeTheRun(ReplayImpossible):
    """Raised when a replay comes to another loss than the run.

    Attributes:
        apart: how far, relative.
    """

    def __init__(self, now: float, was: float) -> None:
        super().__init__(f"a replay does not repeat the run: its loss is {now:.6g}, the run's {was:.6g}")
        self.apart = _apart(was, now)


def how_far(was: float, now: float) -> float:
    """Return how far a replay's loss is from that of the run, relative.

    Raises:
        UnlikeTheRun: too far for a replay of it.
    """
    apart = _apart(was, now)
    if not apart <= UNFAITHFUL:
        raise UnlikeTheRun(now, was)
    return apart


def _apart(was: float, now: float) -> float:
    return abs(now - was) / max(abs(was), 1e-30)


# How near is measured: kernels that add up in another order each time, and inputs that nobody can put back, are off at
# every step. A step is off where it is further from the run than FLOOR times all that were looked at before, and than
# ROUNDINGS of float32, which is what another number of threads may make.
class Repeats:
    """Remembers how far replays were from the run."""

    def __init__(self) -> None:
        self._n_looks = 0
        self._most = 0.0
        self._is_told = False

    def is_as_before(self, apart: float) -> bool:
        """Return whether a replay is no further off than those before allow; one further off is not remembered.

        Args:
            apart: its loss from that of the run, relative.
        """
        self._n_looks += 1
        is_noisy = FLOOR * self._most > _ROUNDED
        if self._n_looks > (LOOKS_OF_NOISE if is_noisy else LOOKS) and not apart <= self._allowed:
            return False
        self._most = max(self._most, apart)
        return True

    def row(self, step: int, apart: float, order: int) -> Reading | None:
        """Return the row that HC232 reads, the first time that a replay is further off; else None."""
        if self._is_told or not math.isfinite(apart):
            return None
        row = number_row(SITE, NOT_REPEATED, step, order, apart / self._allowed, call=self._n_looks - 1)
        self._is_told = True
        return row

    @property
    def _allowed(self) -> float:
        """The largest distance of a replay that counts as a repetition; once told of, no more than was seen before."""
        if self._is_told:
            return self._most
        return max(FLOOR * self._most, _ROUNDED)
