"""Stage 5: many batches at learning rate 0: forward and backward alone, step by step, and which batch stands out."""

from __future__ import annotations

from hypocenter.align.alignment import StageResult
from hypocenter.align.context import Context
from hypocenter.align.each_step import EachStep, each_step
from hypocenter.align.first_step_rounding import grad_norm_rounding, loss_rounding
from hypocenter.align.repeats import repeats
from hypocenter.align.verdicts import result
from hypocenter.compare.curves.curve import Curve

_SHOWN = 5  # steps that stand out
_NAMES = {"loss": "loss", "grad_norm": "grad norm"}


def judge(context: Context) -> StageResult:
    """Failed where steps' loss or grad norm are farther from the baseline's than its repeats are, by the budget."""
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
