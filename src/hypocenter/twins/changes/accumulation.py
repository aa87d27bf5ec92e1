"""A batch, and the same batch in several micro-batches, make the same step.

What it means
    Gradients of micro-batches add up to that of the whole batch only if each counts as much as it holds. A loss that is
    not divided makes the gradient K times too large; one that is averaged over tokens of unequal micro-batches weighs
    them wrongly; a scheduler or a norm that counts micro-batches moves at the wrong time.

How it is decided
    The program as it is against the same with batches K times smaller, of which K make a step (`accumulation=K`, 2 when
    not given). In Trainers of Transformers and Lightning that is imposed; else say how with `--candidate-args`.
    Gradients, parameters, optimizer state and learning rate of each step are compared: they may differ by rounding,
    whose size replays measure. Dropout is off in both runs: it draws other values for other shapes.

What to do
    Divide the loss by the number of micro-batches, or by the number of labels of the whole step.

When it is wrong
    BatchNorm in training and losses over pairs of samples (contrastive) depend on the size of a micro-batch by
    definition; models with BatchNorm are not judged.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hypocenter.compare.comparison import Spot
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, gradient_factor, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import Made, NotApplicableError

_PHASES = ("param", "grad", "optimizer")
_NEAR = 1e-2  # relative: a factor this near to the number of micro-batches is it
_HOW = "say how: --candidate-args '--batch-size 4 --accumulate 2', in the words of the program"


@change("accumulation", order=4, values="K")
def accumulation(asked: Asked) -> Twin:
    """Compare whole batches with batches in parts."""
    k = asked.number(2, least=2)
    calm = replace(recording(asked, asked.steps, calibrated=True), no_dropout=True)
    make = asked.runs.make
    whole = make("whole", calm, words=asked.first_words).recorded()
    again = make("whole-again", calm, words=asked.first_words)
    imposed = () if asked.second_words else (f"accumulation={k}",)
    parts = make("parts", replace(calm, change=imposed, calibrate="never"), words=asked.second_words).recorded()
    n_whole, n_parts = _n_microbatches(whole), _n_microbatches(parts)
    _refuse(open_run(whole.directory), parts, n_whole, n_parts)
    judged = judge(whole, again, parts, is_exact=False, wanted=_is_of_step)
    what = f"in {n_parts} micro-batches in place of {n_whole}"
    found = answer(judged, (whole, again, parts), what)
    if found.status != "differs":
        return found
    return _explained(found, gradient_factor(judged.comparison, whole, parts), n_parts / n_whole)


def _is_of_step(spot: Spot) -> bool:
    return spot.phase in _PHASES


def _n_microbatches(made: Made) -> int:
    return max((record.n_microbatches for _, record in open_run(made.directory).step_records()), default=0)


def _refuse(whole: RecordedRun, parts: Made, n_whole: int, n_parts: int) -> None:
    """Raise NotApplicableError where dividing the batch proves nothing."""
    where = "hypocenter twin accumulation"
    left = [line for line in parts.noted.get("accumulation", []) if line.startswith("left: ")]
    if left:
        raise NotApplicableError(
            "the batch cannot be divided",
            where=where,
            why=left[0].removeprefix("left: "),
            fix="give another number: accumulation=K",
        )
    if n_parts <= n_whole:
        raise NotApplicableError(
            "the changed run has no more micro-batches a step",
            where=where,
            why=f"{n_parts} in place of {n_whole}",
            fix=_HOW,
        )
    facts = whole.facts()
    norms = [one.path for one in (facts.modules if facts is not None else ()) if "BatchNorm" in one.kind]
    if norms:
        raise NotApplicableError(
            "the model normalises over the samples of a micro-batch",
            where=where,
            why=f"{norms[0]} is a BatchNorm: it depends on their number by definition",
        )


def _explained(found: Twin, scale: float | None, k: float) -> Twin:
    first = found.first
    if first is not None and first.phase == "optimizer" and first.site.startswith("lr"):
        return replace(
            found,
            cause="schedule-counts-micro-batches",
            confidence="likely",
            fix="call scheduler.step() once a step of the optimizer",
        )
    if first is None or first.phase != "grad" or scale is None:
        return replace(found, cause="split-dependence", confidence="possible")
    for factor, how in ((k, "the loss is not divided"), (1.0 / k, "the loss is divided twice")):
        if math.isclose(scale, factor, rel_tol=_NEAR):
            return replace(
                found,
                cause="accumulation-normalisation",
                confidence="likely",
                why=(
                    f"gradients are {scale:.4g} times those of the whole batch: {how} by the number of micro-batches",
                    *found.why,
                ),
                fix="divide exactly once by the number of micro-batches, or by the labels of the whole step",
            )
    why = (f"gradients are {scale:.4g} times those of the whole batch", *found.why)
    return replace(
        found,
        cause="split-dependence",
        confidence="possible",
        why=why,
        fix="weigh each micro-batch by what it holds: labels, tokens, samples",
    )
