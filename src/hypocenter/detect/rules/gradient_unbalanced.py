"""The gradient that the optimizer uses is not the sum of what its micro-batches give.

What it means
    Between backward and the update a gradient has become something else: a micro-batch is left out or counts twice,
    the gradient of the step before was not zeroed, one parameter's gradient was scaled, dropped, cut, exchanged, or
    rewritten by a hook or by code that runs in between. Or a micro-batch that is done again does not come to the loss
    of the run any more: it depends on something that cannot be put back, or was computed wrongly.

How it is decided
    At steps of `--audit` each micro-batch is done again, with the same inputs, random numbers and parameters. What the
    optimizer is about to use must be the sum of these gradients times one factor that is the same for every parameter:
    the loss scale, a mean over micro-batches and a clip to a norm all are; where a clip is given a part of them, of
    that part. Compared are norms and scalar products in float64, to 1e-3 or 32 roundings of the gradient's format. What
    a program always does to a gradient (a smaller rate for the embedding, a mask) is its habit: a parameter counts when
    it has balanced at two audited steps before, or when the gradient of the step before is in it, as it was. From the
    first step on it counts when the program divides by the number of its micro-batches, three or more, twice: the loss
    of each, one division after the other that makes no mean of as many terms, or that and the gradients; and at an
    update of more micro-batches than the loss or gradient of each is divided by, between updates of as many; and where
    the Trainer of Transformers is to make one mean of its micro-batches, and the loss of each of them is a mean that it
    adds to the others (the weights of its labels in its cross-entropy, or of the terms of the sum that it is, padding
    left out, add up to 1, at two steps in a row). The losses of these replays must be those of the run: to four times
    what they were apart before, and to 32 roundings of float32; after four replays. Where an optimizer updates copies
    of weights or parts of them (ZeRO or masters by hand), the gradient that a copy is given must have to do with that
    of its weight: it counts when their cosine is next to nothing three times in a row and was not before, or is not at
    a neighbouring place. Three updates of the first 64 steps, each made of one micro-batch alone, while accelerate
    holds updates back and has divided the loss by the number of those that it adds up. Where the gradient of the step
    before is in it, its versions are followed: if they tell that it is set to zero at every so many updates, the
    program steps in the middle of its accumulation. Also from the start: a loss is multiplied by 16 or more, and the
    gradients of some parameters are that many times the others', or that part of them, at two audited steps in a row.

What to do
    Look at what runs between backward and the update at that step: `zero_grad`, hooks, code that writes to `.grad`.

When it is wrong
    A program that from some step on treats one gradient otherwise on purpose. A step that does not repeat itself is a
    note: it may read a clock, a file, or a number that another process has changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import (
    ANOTHER,
    FACTOR,
    HELD_BACK,
    IN_ACCUMULATION,
    MICROBATCH,
    MISSING,
    NOT_DIVIDED,
    NOT_REPEATED,
    SCALED,
    SITE,
    STEP_BEFORE,
    TOO_MANY,
    TWICE,
    UNBALANCED,
)
from hypocenter.detect.window import Window
from hypocenter.in_words import counted
from hypocenter.nouns import Finding, Reading, Remedy

_DIVIDE = Remedy(
    action="divide-by-all-labels",
    text="divide the sum over labels by num_items_in_batch, or set loss_is_scaled_for_ga = False on the Trainer",
)
_ZERO_GRAD = Remedy(action="zero-grad", text="call optimizer.zero_grad() before the first backward of every step")
_STEP_LESS = Remedy(
    action="step-with-zero-grad",
    text="call step() only where zero_grad() is called, after the last micro-batch (accelerate: prepare() it)",
)
_PREPARE = Remedy(action="prepare", text="give the optimizer to accelerator.prepare() with the model")
_LAST_WINDOW = Remedy(
    action="end-the-window",
    text="make an update of what is left over at the end of a pass, or set the gradients to zero there",
)
_DIVIDE_ONCE = Remedy(
    action="divide-once",
    text="leave out one of them: the program's own, where DeepSpeed, accelerate or a Trainer divides the loss",
)
_UNSCALE = Remedy(action="unscale-all", text="take the scale of the loss out of the gradients of every parameter")
_REMEDIES = {
    SCALED: _UNSCALE,
    TWICE: _DIVIDE_ONCE,
    STEP_BEFORE: _ZERO_GRAD, NOT_DIVIDED: _DIVIDE, IN_ACCUMULATION: _STEP_LESS, TOO_MANY: _LAST_WINDOW,
    HELD_BACK: _PREPARE,
}  # fmt: skip
_SINCE = (ANOTHER, NOT_DIVIDED, IN_ACCUMULATION, TWICE, HELD_BACK, SCALED)  # told some steps after they began


@rule("HC232", "desync", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once a step, for all parameters that are off, and for a loss that does not come out again."""
    again = next((row for row in window.by_phase["optimizer"] if row.port == NOT_REPEATED), None)
    if again is not None:
        yield _not_repeated(window, again)
    off = [row for row in window.by_phase["optimizer"] if row.port == UNBALANCED]
    if not off:
        return
    first = next((row for row in off if row.module == IN_ACCUMULATION), off[0])
    is_of_all = first.site == SITE
    ago = first.call if first.module in _SINCE else int(first.op or 0) if first.module == TOO_MANY else 0
    step = max(0, window.step - ago)
    yield Finding(
        code="HC232",
        kind="desync",
        severity="warning",
        title=_title(first),
        step=step,
        rank=window.rank,
        microbatch=int(first.op) if first.op and first.module == MICROBATCH else 0,
        phase="grad",
        site="" if is_of_all else first.site,
        port="grad",
        param=None if is_of_all else first.site,
        cause="program-error",
        limit=1.0,
        actual=first.summary.sum,
        why=tuple(_why(first, off)),
        then=("the update follows another gradient than that of its batch",),
        confidence="likely" if first.module in (TWICE, TOO_MANY, NOT_DIVIDED, IN_ACCUMULATION) else "proven",
        remedy=_REMEDIES.get(first.module),
    )


def _not_repeated(window: Window, row: Reading) -> Finding:
    return Finding(
        code="HC232",
        kind="desync",
        severity="note",
        title="a micro-batch that is done again does not come to the loss of the run",
        step=window.step,
        rank=window.rank,
        phase="loss",
        site="loss",
        limit=1.0,
        actual=row.summary.sum,
        why=(
            f"the two are {row.summary.sum:.3g} times as far apart as they may be by the {row.call} replays before",
            "inputs, parameters, buffers and random numbers were the same",
        ),
        then=("the step cannot be done again: it depends on something else, or was computed wrongly",),
        confidence="likely",
    )


def _title(row: Reading) -> str:
    if row.module == IN_ACCUMULATION:
        return f"the optimizer steps {row.summary.sum:.0f} times in each accumulation of gradients"
    return f"the gradient of {'every parameter' if row.site == SITE else row.site} {_how(row)}"


def _how(row: Reading) -> str:
    if row.module == ANOTHER:
        return "does not reach the optimizer's copy of it, which is given another"
    if row.module == HELD_BACK:
        return f"is of one micro-batch, its loss divided by {row.op}"
    if row.module == MISSING:
        return "is not used, though its micro-batches give one"
    if row.module == TWICE:
        return "is divided twice by the number of micro-batches"
    if row.module == NOT_DIVIDED:
        return f"is {row.summary.sum:.0f} times a mean: nobody divides by the number of micro-batches"
    if row.module == TOO_MANY:
        return f"is of {row.summary.sum * row.call:.0f} micro-batches, each divided by {row.call}"
    if row.module == FACTOR:
        digits = 6 if abs(row.summary.sum - 1.0) < 0.005 else 3
        return f"is {row.summary.sum:.{digits}g} times what its micro-batches give"
    if row.module == SCALED:
        return f"is {row.summary.sum:.3g} times the others': the loss is multiplied by {row.op}, and not all divided"
    if row.module == STEP_BEFORE:
        return "still holds that of the step before"
    if row.module == MICROBATCH:
        return f"counts micro-batch {row.op} otherwise than the rest"
    return "is not what its micro-batches give"


def _why(first: Reading, off: list[Reading]) -> Iterator[str]:
    if first.module == ANOTHER:
        yield "the optimizer updates a copy of it, which had its bits at the first update"
        yield f"the gradient of the copy has nothing to do with it: their cosine is {first.summary.sum:.2g}"
        yield f"so it is from step {first.step - first.call} to {first.step}"
        return
    if first.module == IN_ACCUMULATION:
        n = round(first.summary.sum)
        yield f"gradients are set to zero before every {n}th update only; the updates between use them as well"
        yield f"so from step {first.step - first.call} to {first.step}"
        return
    if first.module == HELD_BACK:
        yield f"accelerate divides each loss by {first.op}, and holds updates back until as many are added up"
        yield "this optimizer steps on all the same: it is none that accelerate has prepared"
        return
    if first.module == TOO_MANY:
        yield f"at the updates before there were {first.call}: some were left over, and their gradients not zeroed"
        return
    if first.module == NOT_DIVIDED:
        n = round(first.summary.sum)
        of = first.op or "labels"
        yield f"the weights of the {of} of each of the {n} micro-batches add up to 1: its loss is a mean"
        yield f"{first.names[0]}, the Trainer, adds them up: it takes each to be divided by all labels of the step"
        return
    if first.module == TWICE:
        n = first.op or first.call  # it was there in older recordings
        yield (
            f"there are {n} micro-batches, and loss and gradients are divided by {n} more than once: "
            f"what is used is {first.summary.sum:.3g} times their mean"
        )
        return
    yield "the micro-batches of this step were done again: their gradients do not add up to what the optimizer uses"
    if len(off) > 1:
        others = ", ".join(row.site for row in off[1:4])
        yield f"the same for {len(off) - 1} more parameters: {others}{' ...' if len(off) > 4 else ''}"
    if first.call and first.module != SCALED:
        yield f"at {counted(first.call, 'audited step')} before they did"
