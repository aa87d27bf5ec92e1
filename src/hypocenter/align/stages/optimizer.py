"""Stage 4: the update: both optimizers' settings, parameter by parameter, what they make of them, and the next loss."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.align.alignment import StageResult
from hypocenter.align.context import Context
from hypocenter.align.groups import GroupDifference, group_differences
from hypocenter.align.spots import is_loss, is_update
from hypocenter.align.verdicts import named, of_comparison, result, same_size
from hypocenter.compare.comparison import Comparison

_SHOWN = 4


def judge(context: Context) -> StageResult:
    """Failed where settings that change an update differ, or an update does while its gradient agrees."""
    found = context.compare(is_update, context.plan.stages.steps - 1, name="update")
    differences = group_differences(
        context.run("baseline", "steps"), context.run("candidate", "steps"), context.matching
    )
    if differences:
        return _settings_apart(context, differences, found)
    if found.first is not None and found.first.phase in ("optimizer", "param"):
        failed = of_comparison(4, found)
        return replace(failed, next=(*failed.next, _again(context)))
    return _next_loss(context)


def _settings_apart(context: Context, differences: list[GroupDifference], found: Comparison) -> StageResult:
    parts = [_in_words(difference) for difference in differences[:_SHOWN]]
    first = differences[0]
    why = [
        f"{one.option} {one.baseline} against {one.candidate}: {named(one.parameters)}" for one in differences[:_SHOWN]
    ]
    if found.first is not None and found.first.phase in ("optimizer", "param"):
        why.append(found.sentence)
    else:
        why.append("the recorded steps are too few to see it in the parameters; it adds up")
    return result(
        4, "failed", f"the optimizers are not set alike: {'; '.join(parts)}", step=0, phase="optimizer",
        site=first.parameters[0], cause="config-mismatch", confidence="proven", why=tuple(why),
        next=(f"give {first.option} of the optimizer the same value for the same parameters", _again(context)),
        figures={"settings": [one.plain() for one in differences]},
    )  # fmt: skip


def _in_words(one: GroupDifference) -> str:
    of = f" of {len(one.parameters)} of {one.n_all} parameters" if len(one.parameters) < one.n_all else ""
    return f"{one.option}{of} is {one.baseline} in the baseline and {one.candidate} in the candidate"


def _next_loss(context: Context) -> StageResult:
    found = context.compare(is_loss, 1, name="second loss")
    row = next((row for row in found.rows if row.distance is not None), None)
    n = context.plan.stages.steps - 1
    words = f"settings of the optimizers and {n} updates agree"
    if row is None:
        return result(4, "cannot-tell", f"{words}; the loss of step 1 was not recorded on both sides")
    losses = [context.loss(side, "steps", 1) for side in ("baseline", "candidate")]
    told = f"loss of step 1 {losses[0]:.6g} and {losses[1]:.6g}"
    figures = {"loss": losses, "error": row.distance.relative if row.distance else None, "floor": row.floor.relative}
    if found.status == "diverged":
        failed = of_comparison(4, found, f"{told}: {same_size(row)}", figures=figures)
        return replace(failed, why=(*failed.why, f"{words}: what is different is too small to be seen in one of them"),
                       next=(*failed.next, _again(context)))  # fmt: skip
    return result(4, "passed", f"{words}; {told}: at most {same_size(row)}", figures=figures)


def _again(context: Context) -> str:
    paths = [context.shown(side, "steps") for side in ("baseline", "candidate")]
    return f"hypocenter diff {paths[0]} {paths[1]}"
