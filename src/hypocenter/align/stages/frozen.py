"""Stage 5: many batches at learning rate 0: forward and backward alone, step by step, and which batch stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hypocenter.align.alignment import StageResult, result
from hypocenter.align.context import Context
from hypocenter.align.repeats import repeats
from hypocenter.align.rounding import grad_norm_rounding, loss_rounding
from hypocenter.compare.curves.align import align
from hypocenter.compare.curves.curve import Curve, Series, Values

_SHOWN = 5  # steps that stand out
_NAMES = {"loss": "loss", "grad_norm": "grad norm"}
_DRAWN = 400  # points of a chart
_MANY = 10  # steps from which a median says something


def judge(context: Context) -> StageResult:
    """Fail where loss or grad norm of steps are farther from the baseline's than its repeats are, by the budget."""
    noise = repeats(context, "frozen-repeat", context.plan.stages.repeats)
    curves = [context.curve(side, "frozen") for side in ("baseline", "candidate")]
    budget = context.plan.stages.budget
    rounding = {"loss": loss_rounding(context), "grad_norm": grad_norm_rounding(context)}
    made = [each_step(name, curves[0], curves[1], noise.curves, budget, rounding=rounding[name]) for name in _NAMES]
    found = [one for one in made if one is not None]
    if not found:
        return result(5, "cannot-tell", "no step's loss or grad norm was recorded on both sides")
    figures = {"curves": [one.plain() for one in found], "repeats": noise.how}
    words = "; ".join(_in_words(one) for one in found)
    bad = [one for one in found if one.outliers]
    if not bad:
        silent = [one for one in found if one.floor == 0.0 and one.largest > 0.0]
        return result(5, "cannot-tell" if silent else "passed", f"at learning rate 0 {words}", figures=figures,
                      why=(f"noise measured on {len(noise.paths)} repeats of the baseline {noise.how}",))  # fmt: skip
    worst = bad[0]
    few = len(worst.outliers) < worst.n / 2
    first = worst.outliers[0]
    paths = [context.shown(side, "frozen") for side in ("baseline", "candidate")]
    how = "on some batches only" if few else "on most batches: forward or backward differ by little everywhere"
    return result(
        5, "failed", f"at learning rate 0 {words}", step=first, phase="loss" if worst.name == "loss" else "grad",
        cause="data-mismatch" if _other_batch(curves, first) else "implementation-mismatch", confidence="likely",
        why=(how, *(f"step {step}: {worst.text_of(step)}" for step in worst.outliers[:_SHOWN])),
        next=(
            f"hypocenter run --level modules --sketch --schedule {first} --impose-lr 0, of both, and diff the two",
            f"hypocenter curves {paths[0]} {paths[1]}",
        ),
        figures=figures,
    )  # fmt: skip


def _in_words(one: EachStep) -> str:
    what = _NAMES[one.name]
    if one.outliers:
        return (
            f"the {what} of {len(one.outliers)} of {one.n} steps is apart by more than noise: at most "
            f"{one.largest:.2g} (noise floor {one.floor:.2g})"
        )
    if one.largest == 0.0:
        return f"the {what} of {one.n} steps is equal"
    return f"the {what} of {one.n} steps is apart by at most {one.largest:.2g} (noise floor {one.floor:.2g})"


def _other_batch(curves: list[Curve], step: int) -> bool:
    digests = [curve.digests.get(step) for curve in curves]
    return None not in digests and digests[0] != digests[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class EachStep:
    """How far a quantity is apart at each step. Differences and floor are relative to the baseline's value."""

    name: str
    n: int
    largest: float  # difference
    floor: float  # largest difference of any repeat, at any step
    outliers: tuple[int, ...]  # steps beyond budget × floor; where most are apart, beyond budget × a usual repeat's
    steps: tuple[int, ...] = ()
    baseline: tuple[float, ...] = ()
    candidate: tuple[float, ...] = ()
    digests: dict[int, str] = field(default_factory=dict[int, str])

    def text_of(self, step: int) -> str:
        """Say the values of a step and its batch, as in `5.31207 and 5.30101, batch 3f2a-…`."""
        at = self.steps.index(step)
        batch = f", batch {self.digests[step]}" if step in self.digests else ""
        return f"{self.baseline[at]:.6g} and {self.candidate[at]:.6g}{batch}"

    def plain(self) -> dict[str, object]:
        """Return the fields as a dictionary for the page, with fewer points."""
        at = np.unique(np.linspace(0, self.n - 1, min(self.n, _DRAWN)).astype(int))
        return {
            "name": self.name, "steps": [self.steps[i] for i in at], "baseline": [self.baseline[i] for i in at],
            "candidate": [self.candidate[i] for i in at],
            "floor": [self.floor * abs(self.baseline[i]) for i in at], "outliers": list(self.outliers[:_DRAWN]),
        }  # fmt: skip


def each_step(
    name: str, baseline: Curve, candidate: Curve, repeats: Sequence[Curve], budget: float, *, rounding: float = 0.0
) -> EachStep | None:
    """Judge a quantity step by step; return None where one side never has it.

    Args:
        rounding: relative; the floor where repeats are nearer than that.
    """
    left, right = baseline.series.get(name), candidate.series.get(name)
    if left is None or right is None:
        return None
    pair = align(left, right).finite()
    if not len(pair.steps):
        return None
    size = np.maximum(np.abs(pair.baseline), np.finfo(np.float64).tiny)
    apart = np.abs(pair.candidate - pair.baseline) / size
    known = [_apart(left, repeat.series[name]) for repeat in repeats if name in repeat.series]
    floor = max((float(one.max(initial=0.0)) for one in known), default=0.0)
    least = max(_print(left, right, size), rounding)
    beyond = apart > budget * max(floor, least)
    usual = max((float(np.median(one)) for one in known if len(one)), default=0.0)
    if usual and len(apart) >= _MANY and np.median(apart) > budget * max(usual, least):
        beyond |= apart > budget * max(usual, least)
    return EachStep(
        name=name, n=len(pair.steps), largest=float(apart.max()), floor=floor,
        outliers=tuple(int(step) for step in pair.steps[beyond]) if floor else (),
        steps=tuple(int(step) for step in pair.steps), baseline=tuple(float(value) for value in pair.baseline),
        candidate=tuple(float(value) for value in pair.candidate), digests=candidate.digests,
    )  # fmt: skip


def _apart(left: Series, repeat: Series) -> Values:
    """Return a repeat's relative differences from the baseline."""
    both = align(left, repeat).finite()
    return np.abs(both.candidate - both.baseline) / np.maximum(np.abs(both.baseline), np.finfo(np.float64).tiny)


def _print(left: Series, right: Series, size: Values) -> float:
    """Return the relative difference that printing with few decimals makes of equal values."""
    return max(left.quantum, right.quantum) / float(np.median(size))
