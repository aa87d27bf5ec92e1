"""From how many times its floor an error counts: of a measured floor the budget, of an assumed one far more."""

from __future__ import annotations

from hypocenter.compare.comparison import Divergence, FloorSource
from hypocenter.compare.noise import ZONE
from hypocenter.compare.verdict import BUDGET


def counts_from(source: FloorSource, budget: float) -> float:
    """Times the floor (as compare.verdict.limits has it)."""
    return {"assumed": budget / BUDGET * ZONE, "none": 1.0}.get(source, budget)


def source_of_floor(first: Divergence) -> FloorSource:
    """What the floor of the first divergence is from; "assumed" when nobody says."""
    return first.row.floor.source if first.row is not None else "assumed"
