"""Local norms: the L2 norm of each parameter's gradient, both sides' and how far the gradients are apart.

Recorded gradients are those that the optimizer got, after clipping: all are smaller by one factor, which a single wrong
gradient changes for all. So it is taken out: the recorded norms tell it, beside the grad norm before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hypocenter.align.context import Context
from hypocenter.align.plan import SideName
from hypocenter.align.spots import is_backward, is_gradient
from hypocenter.align.verdicts import farther
from hypocenter.compare.comparison import RowComparison, RowVerdict

_CLIPPED = 1e-3  # relative: how far norms may be apart before it is clipping


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNorm:
    """Of one parameter in the first step."""

    site: str
    baseline: float  # before clipping
    candidate: float
    error: float  # relative, of the gradient as a vector, clipping taken out
    floor: float  # relative, measured
    verdict: RowVerdict

    @property
    def times(self) -> float:
        """Error over floor."""
        return self.error / self.floor if self.floor else (math.inf if self.error else 0.0)

    def numbers(self) -> str:
        """`apart by 0.11, 13 times the noise floor of 0.0078`."""
        return farther(self.error, self.floor)

    def plain(self) -> dict[str, object]:
        """For the page."""
        return {
            "site": self.site, "baseline": self.baseline, "candidate": self.candidate, "error": self.error,
            "floor": self.floor, "verdict": self.verdict,
        }  # fmt: skip


def local_norms(context: Context) -> list[LocalNorm]:
    """Of all parameters that both sides recorded, in the baseline's order."""
    found = context.compare(is_backward, 0, name="backward")
    rows = [row for row in found.rows if is_gradient(row.pair.baseline[0]) and row.distance is not None]
    norms: dict[SideName, dict[str, float]] = {side: context.gradient_norms(side) for side in _SIDES}
    factors: dict[SideName, float] = {side: _clipping(context, side, norms[side]) for side in _SIDES}
    return list(_of_rows(context, rows, norms, factors))


_SIDES: tuple[SideName, SideName] = ("baseline", "candidate")


def _of_rows(
    context: Context,
    rows: list[RowComparison],
    norms: dict[SideName, dict[str, float]],
    factors: dict[SideName, float],
) -> Iterator[LocalNorm]:
    for row in rows:
        if row.distance is None:
            continue
        mine, other = row.pair.baseline, row.pair.candidate
        baseline = math.hypot(*(norms["baseline"].get(spot.site, math.nan) for spot in mine)) / factors["baseline"]
        candidate = math.hypot(*(norms["candidate"].get(spot.site, math.nan) for spot in other)) / factors["candidate"]
        error = _unclipped(row, factors["candidate"] / factors["baseline"], context)
        yield LocalNorm(
            site=mine[0].site, baseline=baseline, candidate=candidate, error=error, floor=row.floor.relative,
            verdict=_verdict(row, error, context.plan.stages.budget),
        )  # fmt: skip


def _unclipped(row: RowComparison, factor: float, context: Context) -> float:
    """The relative error once the candidate is divided by `factor`.

    From both sketches where they are of one tensor; else ‖c/f - b‖² from ‖c - b‖² and ⟨c, b⟩.
    """
    assert row.distance is not None
    relative, scale = row.distance.relative, row.distance.scale
    if factor == 1.0:
        return relative
    cards = [
        context.card(side, spots[0])
        for side, spots in zip(_SIDES, (row.pair.baseline, row.pair.candidate), strict=True)
    ]
    mine, other = (np.array(card.sketch) if card is not None and card.sketch else None for card in cards)
    is_one = len(row.pair.baseline) == len(row.pair.candidate) == 1 and row.pair.layout.kind == "identity"
    if is_one and mine is not None and other is not None and mine.any():
        return float(np.linalg.norm(other / factor - mine) / np.linalg.norm(mine))
    if scale is None:
        return relative
    size = relative**2 - 1 + 2 * scale  # ‖c‖² / ‖b‖²
    return math.sqrt(max(size / factor**2 - 2 * scale / factor + 1, 0.0))


def _verdict(row: RowComparison, error: float, budget: float) -> RowVerdict:
    """As the comparison has it, but for what clipping made."""
    assert row.distance is not None
    if row.verdict != "differs" and row.verdict != "within-noise":
        return row.verdict
    certain = row.distance.low / row.distance.relative if row.distance.relative else 1.0
    if row.floor.source == "assumed":
        return row.verdict
    return "differs" if error * certain > budget * row.floor.relative else "within-noise"


def _clipping(context: Context, side: SideName, norms: dict[str, float]) -> float:
    """What a side's gradients of the first step were multiplied by between their norm and the update."""
    before = context.grad_norm(side, "steps", 0)
    after = math.hypot(*norms.values()) if norms else 0.0
    if math.isnan(before) or not before or not after or after > before * (1 - _CLIPPED):
        return 1.0
    return after / before
