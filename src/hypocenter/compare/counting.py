"""From how many times its floor an error surely counts: the more rows, the more; of an assumed floor far more."""

from __future__ import annotations

from hypocenter.compare.chance import apart_from
from hypocenter.compare.comparison import Comparison, Divergence, FloorSource
from hypocenter.compare.noise import ZONE
from hypocenter.compare.verdict import BUDGET


def counts_from(source: FloorSource, found: Comparison) -> float:
    """Times the floor (as compare.verdict has it)."""
    of_samples = float(apart_from(found.n_noisy, found.budget, found.n_samples))
    of_bounds = {"assumed": found.budget / BUDGET * ZONE, "none": 1.0, "rounding": found.budget}
    return of_bounds.get(source, of_samples)


def source_of_floor(first: Divergence) -> FloorSource:
    """What the floor of the first divergence is from; "assumed" when nobody says."""
    return first.row.floor.source if first.row is not None else "assumed"
