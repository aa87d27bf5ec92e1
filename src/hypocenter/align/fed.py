"""The candidate's optimizer fed with the baseline's gradients: does it make the same parameters of them?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.align.context import Context
from hypocenter.align.errors import ProgramFailedError
from hypocenter.align.rounding import unit
from hypocenter.align.spots import is_weight
from hypocenter.compare.updates.recompute import LIMIT_UNITS
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates

_MOST_UNITS = 2 * LIMIT_UNITS  # what rounding may make on either side
_ELEMENTS = 1 << 22  # of a parameter that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What was found. `error_units` counts rounding errors of the parameters' format."""

    n: int = 0
    worst: str = ""  # parameter, in the baseline's names
    error_units: float = 0.0
    relative: float = 0.0  # of the worst one's update
    why_not: str = ""

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain it."""
        return self.n > 0 and self.error_units > _MOST_UNITS

    def in_words(self) -> str:
        """One sentence."""
        if not self.n:
            return f"the candidate's optimizer could not be fed with the baseline's gradients: {self.why_not}"
        if not self.differs:
            return (
                f"fed with the baseline's gradients, the candidate's optimizer makes the same of {self.n} parameters, "
                f"to {self.error_units:.2g} rounding errors"
            )
        return (
            f"fed with the baseline's gradients, the candidate's optimizer makes other parameters: {self.worst} by "
            f"{self.relative:.2g} of its update"
        )


def fed(context: Context) -> Fed:
    """Compare the first update, parameter by parameter, of those that lie alike on both sides."""
    try:
        source = context.path("baseline", "updates")
        path = context.path("candidate", "fed", gradients=str(source))
    except ProgramFailedError as error:
        return Fed(why_not=error.why)
    mine = {one.name: one for one in RecordedUpdates(context.open(source)).of(0)}
    other = {one.name: one for one in RecordedUpdates(context.open(path)).of(0)}
    found = Fed(why_not="no update was recorded")
    for pair in context.matching.pairs:
        spot, partner = pair.baseline[0], pair.candidate[0].site
        if not is_weight(spot) or pair.layout.kind != "identity" or len(pair.baseline) != len(pair.candidate):
            continue
        name = spot.site
        if name in mine and partner in other and mine[name].after.shape == other[partner].after.shape:
            found = _worse(found, name, mine[name], other[partner])
    return found


def _worse(found: Fed, name: str, mine: ParameterUpdate, other: ParameterUpdate) -> Fed:
    before, after = mine.before.values().ravel()[:_ELEMENTS], mine.after.values().ravel()[:_ELEMENTS]
    start, end = other.before.values().ravel()[:_ELEMENTS], other.after.values().ravel()[:_ELEMENTS]
    apart = (end - start) - (after - before)
    size = np.maximum(np.maximum(np.abs(after), np.abs(before)), np.finfo(np.float32).tiny)
    coarser = max(unit(mine.before.dtype), unit(other.before.dtype))
    units = float((np.abs(apart) / (coarser * size)).max(initial=0.0))
    if found.n and units <= found.error_units:
        return Fed(n=found.n + 1, worst=found.worst, error_units=found.error_units, relative=found.relative)
    update = float(np.linalg.norm(after - before))
    relative = float(np.linalg.norm(apart)) / update if update else 0.0
    return Fed(n=found.n + 1, worst=name, error_units=units, relative=relative)
