"""From a distance and a floor to a verdict on one row: equal, within noise, differs, or nobody can tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hypocenter.compare.comparison import RowVerdict
from hypocenter.compare.distances.columns import NONE, Distances
from hypocenter.compare.noise import ASSUMED, NO_FLOOR, ZONE, Floors
from hypocenter.compare.rows import Reals

EQUAL, WITHIN, DIFFERS, CANNOT_TELL = range(4)
_WORDS: tuple[RowVerdict, ...] = ("equal", "within-noise", "differs", "cannot-tell")
BUDGET = (
    4.0  # times a measured floor: 3 samples of float32 noise are passed by 1 of 4 good rows at 1, by none of 240 at
)
# 4 (measured on a 12-layer transformer, DESIGN "noise floor")


def row_verdicts(distances: Distances, floors: Floors, budget: float) -> npt.NDArray[np.int8]:
    """Judge each row: it differs when even the low end of its error is beyond budget × floor.

    Of an assumed floor the budget is counted from BUDGET on, and nobody can tell up to ZONE times it.
    """
    agrees_to, differs_from = limits(floors, budget)
    found = np.full(len(distances.relative), CANNOT_TELL, np.int8)
    found[distances.relative <= agrees_to] = WITHIN
    found[distances.low > differs_from] = DIFFERS
    found[distances.is_equal] = EQUAL
    found[distances.depth == NONE] = CANNOT_TELL
    return found


def limits(floors: Floors, budget: float) -> tuple[Reals, Reals]:
    """Up to where an error is noise, and from where on it is none."""
    is_assumed = floors.source == ASSUMED
    scale = np.where(floors.source == NO_FLOOR, 1.0, np.where(is_assumed, budget / BUDGET, budget))
    agrees_to = floors.relative * scale
    return agrees_to, np.where(is_assumed, agrees_to * ZONE, agrees_to)


def word(code: int) -> RowVerdict:
    """The verdict as it is written."""
    return _WORDS[code]
