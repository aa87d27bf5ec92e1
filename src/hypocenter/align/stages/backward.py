"""Stage 3: the local norm of each parameter's gradient in the first step, and with it the backward pass.

Local norms: the L2 norm of each parameter's gradient, both sides' and how far the gradients are apart.

Recorded gradients are those that the optimizer got, after clipping: all are smaller by one factor, which a single wrong
gradient changes for all. So it is taken out: the recorded norms tell it, beside the grad norm before clipping.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.align.alignment import StageResult, farther, named, of_comparison, result
from hypocenter.align.context import Context, is_backward, is_forward, is_gradient
from hypocenter.align.plan import SideName
from hypocenter.compare.comparison import RowComparison, RowVerdict

_FEWEST = 3  # parameters that make a common factor one
_SAME = 1e-2  # relative: how far factors may be apart that are one
_SHOWN = 3  # parameters whose numbers are given
_CLIPPED = 1e-3  # relative: how far norms may be apart before it is clipping


def judge(context: Context) -> StageResult:
    """Fail where a parameter's gradient leaves the baseline's by more than its measured noise."""
    norms = local_norms(context)
    if not norms:
        return result(3, "cannot-tell", "no gradient of a parameter was recorded on both sides")
    figures: dict[str, object] = {"local_norms": [one.plain() for one in norms]}
    apart = [one for one in norms if one.verdict == "differs"]
    found = context.compare(is_backward, 0, name="backward")
    if not apart:
        doubtful = [one for one in norms if one.verdict == "cannot-tell"]
        worst = max(norms, key=lambda one: one.times)
        words = f"the local norms of {len(norms)} parameters agree; the farthest, of {worst.site}, is {worst.numbers()}"
        if doubtful:
            words = f"nobody can tell of {len(doubtful)} of {len(norms)} local norms: {named(d.site for d in doubtful)}"
            return result(3, "cannot-tell", words, figures=figures, why=tuple(found.notes))
        return result(3, "passed", words, figures=figures)
    return _failed(context, norms, apart, figures)


def _shared_factor(norms: list[LocalNorm], apart: list[LocalNorm]) -> float | None:
    """Return the factor by which all gradients are larger, if it is one number; else None."""
    if len(apart) < len(norms) or len(norms) < _FEWEST or not all(one.baseline for one in norms):
        return None
    factors = sorted(one.candidate / one.baseline for one in norms)
    middle = factors[len(factors) // 2]
    return middle if factors[0] > 0 and factors[-1] - factors[0] < _SAME * middle else None


def _failed(
    context: Context, norms: list[LocalNorm], apart: list[LocalNorm], figures: dict[str, object]
) -> StageResult:
    found = context.compare(is_backward, 0, name="backward")
    told = of_comparison(3, found)
    worst = max(apart, key=lambda one: one.times)
    names = {one.site for one in apart}
    site = told.site if told.site is not None and len(apart) > 1 else worst.site
    shown = sorted(apart, key=lambda one: -one.times)[:_SHOWN]
    words = (
        f"the gradient of {worst.site} is not the baseline's: local norm {worst.baseline:.4g} and "
        f"{worst.candidate:.4g}, {worst.numbers()}"
    )
    why: list[str] = []
    if len(apart) > 1:
        words = (
            f"{len(apart)} of {len(norms)} gradients are not the baseline's: "
            f"{named(one.site for one in shown)}; the farthest {worst.numbers()}"
        )
        why = [f"{one.site}: local norm {one.baseline:.4g} and {one.candidate:.4g}, {one.numbers()}" for one in shown]
    shared = _shared_factor(norms, apart)
    if shared is not None:
        words = f"all {len(norms)} gradients are {shared:.6g} times the baseline's, before clipping"
        why, told = [], replace(told, why=("the backward pass is right but for what divides or multiplies all of it",))
    formats = formats_apart(context, site)
    cause, confidence, fix = told.cause, told.confidence, list(told.next)
    if formats is not None and cause in (None, "unknown"):
        cause, confidence = "precision-mismatch", "likely"
        why.insert(0, formats.text)
        fix = [formats.fix]
    if len(norms) > len(apart):
        why.append(f"the other {len(norms) - len(apart)} agree, and so does the backward pass up to there")
    if shared is not None:
        site, confidence = None, "likely"
    paths = [context.shown(side, "steps") for side in ("baseline", "candidate")]
    return replace(
        result(3, "failed", words, figures=figures), step=0, phase="grad" if site in names else told.phase, site=site,
        cause=cause or "unknown", confidence=confidence, why=(*why, *told.why),
        next=(*fix, f"hypocenter diff {paths[0]} {paths[1]} --steps 0"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatsApart:
    """A sentence on formats that differ between the sides, and what to do."""

    text: str
    fix: str


def formats_apart(context: Context, site: str) -> FormatsApart | None:
    """Return what is said where the module of a parameter, or itself, gives outputs in other formats; else None."""
    found = context.compare(is_forward, 0, name="formats")
    for module in (site.rpartition(".")[0], site):
        for row in found.rows:
            if _is_output(row, module) and row.dtypes[0] != row.dtypes[1] and all(row.dtypes):
                mine, other = row.dtypes
                return FormatsApart(
                    text=f"{module}{_kind(context, module)} gives {mine} in the baseline and {other} in the candidate: "
                    "it computes, and adds up its gradient, in another format",
                    fix=f"let {module} compute in {mine}, as the baseline does",
                )  # fmt: skip
    return None


def _kind(context: Context, module: str) -> str:
    """Return the module's class as in ` (Embedding)`; "" where it is not known."""
    facts = context.run("baseline", "steps").facts()
    kinds = (one.kind for one in (facts.modules if facts is not None else ()) if one.path == module)
    return "".join(f" ({kind})" for kind in kinds)


def _is_output(row: RowComparison, module: str) -> bool:
    spot = row.pair.baseline[0]
    return bool(module) and spot.phase == "forward" and spot.site == module and spot.port.startswith("out")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNorm:
    """The norm of one parameter's gradient on both sides, in the first step."""

    site: str
    baseline: float  # before clipping
    candidate: float
    error: float  # relative, of the gradient as a vector, clipping taken out
    floor: float  # relative, measured
    verdict: RowVerdict

    @property
    def times(self) -> float:
        """The error as a multiple of its floor."""
        return self.error / self.floor if self.floor else (math.inf if self.error else 0.0)

    def numbers(self) -> str:
        """Say how far the gradients are apart, as in `apart by 0.11, 13 times the noise floor of 0.0078`."""
        return farther(self.error, self.floor)

    def plain(self) -> dict[str, object]:
        """Return the fields as a dictionary for the page."""
        return {
            "site": self.site, "baseline": self.baseline, "candidate": self.candidate, "error": self.error,
            "floor": self.floor, "verdict": self.verdict,
        }  # fmt: skip


def local_norms(context: Context) -> list[LocalNorm]:
    """Return the local norms of all parameters that both sides recorded, in the baseline's order."""
    found = context.compare(is_backward, 0, name="backward")
    rows = [row for row in found.rows if is_gradient(row.pair.baseline[0]) and row.distance is not None]
    norms: dict[SideName, dict[str, float]] = {side: context.gradient_norms(side) for side in _SIDES}
    factors: dict[SideName, float] = {side: _clipping(context, side, norms[side]) for side in _SIDES}
    return list(_of_rows(context, rows, norms, factors))


_SIDES: tuple[SideName, SideName] = ("baseline", "candidate")


def _of_rows(
    context: Context, rows: list[RowComparison], norms: dict[SideName, dict[str, float]], factors: dict[SideName, float]
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
    """Return the relative error once the candidate is divided by `factor`.

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
    """Return the verdict of the comparison, judged again once the effect of clipping is taken out."""
    assert row.distance is not None
    if row.verdict != "differs" and row.verdict != "within-noise":
        return row.verdict
    certain = row.distance.low / row.distance.relative if row.distance.relative else 1.0
    if row.floor.source == "assumed":
        return row.verdict
    return "differs" if error * certain > budget * row.floor.relative else "within-noise"


def _clipping(context: Context, side: SideName, norms: dict[str, float]) -> float:
    """Return the factor by which clipping multiplied a side's gradients in the first step."""
    before = context.grad_norm(side, "steps", 0)
    after = math.hypot(*norms.values()) if norms else 0.0
    if math.isnan(before) or not before or not after or after > before * (1 - _CLIPPED):
        return 1.0
    return after / before
