"""Stage 7: both programs train; does the candidate's loss stay within the baseline's own error?"""

from __future__ import annotations

from hypocenter.align.alignment import StageResult, StageVerdict, named, result
from hypocenter.align.context import Context
from hypocenter.align.groups import group_differences
from hypocenter.align.repeats import repeats
from hypocenter.align.rounding import grad_norm_rounding, loss_rounding
from hypocenter.align.tracks import track_figures
from hypocenter.checklist.data.side import batches_of_step
from hypocenter.checklist.data.tokenizer import open_tokenizer
from hypocenter.compare.curves.compare import compare_curves
from hypocenter.compare.curves.comparison import Check, CurveComparison, Limits
from hypocenter.errors import HypocenterError

_VERDICTS: dict[str, StageVerdict] = {"accepted": "passed", "departed": "failed", "cannot-tell": "cannot-tell"}
_SAMPLES, _TOKENS = 3, 48  # shown


def judge(context: Context) -> StageResult:
    """Judge departure, swings around zero, late drift, spikes and learning rates, by the rules of `curves`."""
    noise = repeats(context, "repeat", context.plan.stages.repeats)
    curves = [context.curve(side, "long") for side in ("baseline", "candidate")]
    budget = context.plan.stages.budget
    rounding = budget * loss_rounding(context)
    limits = Limits(rounding=rounding, grad_norm_rounding=budget * grad_norm_rounding(context))
    found = compare_curves(curves[0], curves[1], noise.curves, limits=limits)
    cause, why = _cause(found)
    if cause == "unknown" and found.status == "departed":
        cause, why = _settings(context)
    figures = {
        "curves": [track_figures(found)],
        "checks": [{"name": c.name, "status": c.status, "text": c.text} for c in found.checks],
        "spikes": [
            {"step": s.step, "side": s.side, "value": s.value, "usual": s.usual, "batch": s.digest}
            for s in found.spikes
        ],
    }
    spikes = [
        f"spike at step {s.step} ({s.side}): {s.value:.4g} where {s.usual:.4g} is usual"
        + (f", batch {s.digest}" if s.digest else "")
        for s in found.spikes[:3]
    ]
    verdict = _VERDICTS[found.status]
    if found.spikes and verdict != "passed" and context.plan.stages.tokenizer:
        spikes += samples_at(context, found.spikes[0].step)
    failed = verdict == "failed"
    names = [context.shown(side, "long") for side in ("baseline", "candidate")]
    again = " ".join(["hypocenter curves", *names, *(f"--noise {context.short(path)}" for path in noise.paths)])
    return result(
        7, verdict, found.sentence, step=_step(found) if failed else None, phase="loss" if failed else None,
        cause=cause if failed else None, confidence=found.confidence if failed else None,
        why=(*why, *found.why, *spikes, f"the repeats differ {noise.how}", *_rounds(rounding)),
        next=(*found.next, again) if verdict != "passed" else (),
        figures=figures,
    )  # fmt: skip


def _rounds(rounding: float) -> list[str]:
    return [f"rounding of the loss alone counts up to {rounding:.2g} of it, as measured in the first step"] * bool(
        rounding
    )


def _settings(context: Context) -> tuple[str, list[str]]:
    """Return cause and reasons where settings of the optimizers differ, if the long runs recorded them."""
    try:
        runs = context.run("baseline", "long"), context.run("candidate", "long")
        apart = group_differences(*runs, context.matching)
    except HypocenterError:
        return "unknown", []
    if not apart:
        return "unknown", ["both optimizers are set alike, parameter by parameter"]
    one = apart[0]
    return "config-mismatch", [
        f"{one.option} of {len(one.parameters)} of {one.n_all} parameters is {one.baseline} in the baseline and "
        f"{one.candidate} in the candidate: {named(one.parameters)}"
    ]


def _cause(found: CurveComparison) -> tuple[str, list[str]]:
    if found.first_other_batch is not None:
        return "data-mismatch", [f"from step {found.first_other_batch} on the batches are others"]
    rate = _failed(found, "learning-rate")
    if rate is not None:
        return "config-mismatch", [f"the learning rates differ: {rate.text}"]
    return "unknown", []


def _step(found: CurveComparison) -> int | None:
    rate = _failed(found, "learning-rate")
    if rate is not None and rate.step is not None:
        return rate.step
    return found.departure.step if found.departure is not None else None


def _failed(found: CurveComparison, name: str) -> Check | None:
    return next((check for check in found.checks if check.name == name and check.status == "fail"), None)


def samples_at(context: Context, step: int) -> list[str]:
    """Return the first samples of the baseline's batch of a step, a line each; or a line that says why not."""
    try:
        tokenizer = open_tokenizer(context.plan.folder / context.plan.stages.tokenizer)
        batches = batches_of_step(context.run("baseline", f"batches-{step}"), step)
    except HypocenterError as error:
        return [f"the batch of step {step} cannot be shown: {error.what}"]
    lines: list[str] = []
    for batch in batches[:1]:
        for number, ids in enumerate(batch.ids[:_SAMPLES].tolist()):
            shown = ids[:_TOKENS]
            text = tokenizer.decode(shown)
            words = " ".join(map(str, shown)) if text is None else repr(text)
            lines.append(f"step {step}, sample {number}: {words}{' ...' if len(ids) > len(shown) else ''}")
    return lines or [f"the batch of step {step} holds no matrix of tokens"]
