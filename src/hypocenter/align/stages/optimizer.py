"""Stage 4: the update: both optimizers' settings, parameter by parameter, what they make of them, and the next loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hypocenter.align.alignment import ProgramFailedError, StageResult, named, of_comparison, result, same_size
from hypocenter.align.context import Context, is_loss, is_update, is_weight
from hypocenter.align.groups import GroupDifference, group_differences
from hypocenter.align.rounding import unit
from hypocenter.compare.comparison import Comparison
from hypocenter.compare.updates.compare import compare_updates
from hypocenter.compare.updates.comparison import UpdateComparison
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates
from hypocenter.optimizers.rounded import ALLOWED

_SHOWN = 4
_MOST_UNITS = 2 * ALLOWED  # what rounding may make on either side
_ELEMENTS = 1 << 22  # of a parameter that are looked at


def judge(context: Context) -> StageResult:
    """Fail where settings or rules differ, an update is not what its optimizer states, or the next loss is off."""
    updates = _updates(context)
    apart = group_differences(context.run("baseline", "steps"), context.run("candidate", "steps"), context.matching)
    if apart:
        return _settings_apart(context, apart, updates)
    if updates.status == "diverged":
        return _updates_apart(context, updates)
    told = fed(context)
    if told.differs:
        return _fed_apart(context, told, updates)
    found = context.compare(is_update, context.plan.stages.steps - 1, name="update")
    if found.status == "diverged" and found.first is not None and found.first.phase in ("optimizer", "param"):
        failed = of_comparison(4, found)
        return replace(failed, why=(*failed.why, updates.sentence, told.in_words()),
                       next=(*failed.next, _again(context)))  # fmt: skip
    return _next_loss(context, updates, told, found)


def _updates(context: Context) -> UpdateComparison:
    """Do both sides' updates again in float64 and compare; where values cannot be recorded nobody can tell."""
    try:
        sides = context.run("baseline", "updates"), context.run("candidate", "updates")
    except ProgramFailedError as error:
        return UpdateComparison(status="cannot-tell", sentence=f"updates could not be recorded: {error.why}")
    return compare_updates(*sides, matching=context.matching)


def _settings_apart(context: Context, apart: list[GroupDifference], updates: UpdateComparison) -> StageResult:
    first = apart[0]
    why = [f"{one.option} {one.baseline} against {one.candidate}: {named(one.parameters)}" for one in apart[:_SHOWN]]
    parts = "; ".join(_in_words(one) for one in apart[:_SHOWN])
    return result(
        4, "failed", f"the optimizers are not set alike: {parts}", step=0, phase="optimizer", site=first.parameters[0],
        cause="config-mismatch", confidence="proven",
        why=(*why, f"the steps done again in float64: {updates.sentence}"),
        next=(f"give {first.option} of the optimizer the same value for the same parameters", _again(context)),
        figures={"settings": [one.plain() for one in apart]},
    )  # fmt: skip


def _in_words(one: GroupDifference) -> str:
    of = f" of {len(one.parameters)} of {one.n_all} parameters" if len(one.parameters) < one.n_all else ""
    return f"{one.option}{of} is {one.baseline} in the baseline and {one.candidate} in the candidate"


def _updates_apart(context: Context, updates: UpdateComparison) -> StageResult:
    first = updates.first
    reasons = first.reasons if first is not None else ()
    only = (*updates.decays_only[0], *updates.decays_only[1])
    return result(
        4, "failed", updates.sentence, step=first.step if first is not None else 0, phase="optimizer",
        site=first.baseline if first is not None else only[0],
        cause=reasons[0].cause if reasons else "config-mismatch",
        confidence=reasons[0].confidence if reasons else "likely",
        why=tuple(reason.text for reason in reasons[:_SHOWN]), next=(_again(context),),
    )  # fmt: skip


def _fed_apart(context: Context, told: Fed, updates: UpdateComparison) -> StageResult:
    return result(
        4, "failed", told.in_words(), step=0, phase="optimizer", site=told.worst, cause="implementation-mismatch",
        confidence="likely", why=(updates.sentence, *updates.why_not[:_SHOWN]), next=(_again(context),),
    )  # fmt: skip


def _next_loss(context: Context, updates: UpdateComparison, told: Fed, found: Comparison) -> StageResult:
    loss = context.compare(is_loss, 1, name="second loss")
    row = next((row for row in loss.rows if row.distance is not None), None)
    if row is None:
        return result(4, "cannot-tell", "the loss of step 1 was not recorded on both sides", why=(updates.sentence,))
    losses = [context.loss(side, "steps", 1) for side in ("baseline", "candidate")]
    words = f"loss of step 1 {losses[0]:.6g} and {losses[1]:.6g}"
    figures = {"loss": losses, "error": row.distance.relative if row.distance else None, "floor": row.floor.relative}
    if loss.status == "diverged":
        failed = of_comparison(4, loss, f"{words}: {same_size(row)}", figures=figures)
        return replace(failed, why=(*failed.why, updates.sentence, told.in_words()),
                       next=(*failed.next, _again(context)))  # fmt: skip
    verdict, doubts = "passed", [updates.sentence, told.in_words()]
    if updates.status == "cannot-tell" and not told.n and found.status != "same":
        verdict = "cannot-tell"  # neither done again nor fed, and what is recorded of parameters does not tell either
        return result(4, verdict, f"{words}; nobody can tell of the updates", why=tuple(doubts), figures=figures)
    settings = "the optimizers are set alike" if updates.status != "same" else updates.sentence
    return result(4, "passed", f"{settings}; {words}: {same_size(row)}", figures=figures,
                  why=tuple(doubts if updates.status != "same" else doubts[1:]))  # fmt: skip


def _again(context: Context) -> str:
    paths = [context.shown(side, "steps") for side in ("baseline", "candidate")]
    return f"hypocenter diff {paths[0]} {paths[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """How the candidate's optimizer does with the baseline's gradients. `error_units` counts rounding errors."""

    n: int = 0
    worst: str = ""  # parameter, in the baseline's names
    error_units: float = 0.0
    relative: float = 0.0  # of the worst one's update
    why_not: str = ""

    @property
    def differs(self) -> bool:
        """Whether the updates differ by more than rounding."""
        return self.n > 0 and self.error_units > _MOST_UNITS

    def in_words(self) -> str:
        """Say in one sentence how the two optimizers compare."""
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
