"""From a distance and a floor to a verdict on one row: equal, within noise, differs, or nobody can tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hypocenter.compare.chance import AT, apart_from
from hypocenter.compare.comparison import RowVerdict
from hypocenter.compare.distances.columns import NONE, Distances
from hypocenter.compare.noise import ASSUMED, NO_FLOOR, ROUNDING, ZONE, Floors
from hypocenter.compare.rows import Reals

EQUAL, WITHIN, DIFFERS, CANNOT_TELL = range(4)
_WORDS: tuple[RowVerdict, ...] = ("equal", "within-noise", "differs", "cannot-tell")
BUDGET = AT  # times a measured floor


def row_verdicts(distances: Distances, floors: Floors, budget: float, n: int) -> npt.NDArray[np.int8]:
    """Judge each row: it differs when even the low end of its error is beyond what chance gives the worst of n rows.

    Between budget × floor and that it may be a rare sample of noise: of the row alone nobody can tell. Of an assumed
    floor the budget is counted from BUDGET on, and nobody can tell up to ZONE times it.
    """
    agrees_to = noise_up_to(floors, budget)
    differs_from = agrees_to * _sure_from(floors, budget, n)
    found = np.full(len(distances.relative), CANNOT_TELL, np.int8)
    found[distances.relative <= agrees_to] = WITHIN
    found[distances.low > differs_from] = DIFFERS
    found[distances.is_equal] = EQUAL
    found[distances.depth == NONE] = CANNOT_TELL
    return found


def noise_up_to(floors: Floors, budget: float) -> Reals:
    """Up to where an error is what one row of two good runs has."""
    is_assumed = floors.source == ASSUMED
    scale = np.where(floors.source == NO_FLOOR, 1.0, np.where(is_assumed, budget / BUDGET, budget))
    return floors.relative * scale


def _sure_from(floors: Floors, budget: float, n: int) -> Reals:
    """From how many times `noise_up_to` on an error is none of n rows of noise. Of a bound there is no rare sample."""
    of_samples = np.where(floors.source == ASSUMED, ZONE, apart_from(n, budget, floors.n_samples) / budget)
    return np.where((floors.source == ROUNDING) | (floors.source == NO_FLOOR), 1.0, of_samples)


def word(code: int) -> RowVerdict:
    """The verdict as it is written."""
    return _WORDS[code]
