"""A parameter, or state of the optimizer or of the model, is not what the last update left.

What it means
    Between two updates something else has written to a parameter or to the optimizer's state: a load of half a
    checkpoint, a copy of old weights, an average that was swapped in and not back, a state that was made anew, a cast.
    Training goes on from numbers that no update made. Or a recurrent model goes on from the state that an evaluation
    has left in it, of other samples.

How it is decided
    After an update a sample of the parameters and of all their state is kept and compared, bit by bit, before the next
    update of the same optimizer: some parameters in turn at updates 1, 2, 4, 8, ... and every 1000th, all of them at
    steps of `--audit`; of parameters on the host a few elements of 32 in turn at every update. A program that writes to
    its parameters on purpose has the habit of it: so it counts only when the same tensor stayed between two looked-at
    pairs of updates before, or between four after it. The options of the optimizer's groups (rate, decay) are compared
    at every update; what a schedule of torch or MindSpore moves is left out. Of a small model on the host (64
    parameters, 65,536 elements) all elements are: one alone that has another sign, or another exponent by one of
    its bits, is a bit that has flipped.
    Where an optimizer updates copies of weights or parts of them (ZeRO or masters by hand), a weight that has a
    gradient must be, to rounding, what its copy became in the update before; it counts when it was not three times in
    a row but had been, or stands at another place.
    A state that a model carries from step to step in an attribute (with a value for each sample) is, when a step
    begins, the tensor that the last one left, by its memory and version. It counts when it was so at three steps or
    more and is now what calls without gradients or in evaluation have left, and with what the step before had left the
    loss is another.

What to do
    Look at the line that is named, or at what runs between the two steps. If it is meant, nothing.

When it is wrong
    The bits are certain, the intention is not: a note names no cause. When a line of the program was seen that writes
    to the parameter, when all parameters change at once (a checkpoint is loaded, averages are swapped in), or the same
    state of all, it is a note; so is an option that changes and then stays, and a new optimizer without state for
    parameters that another one with state has updated for eight updates or more: a resume that loads weights alone, or
    a new stage of training.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import BIT, CARRIED, CHANGED, COPY, GONE, OPTION, SITE, STATE
from hypocenter.detect.update_rows import share
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

WHOLE = 0.9  # of all that was looked at: a load, or a swap


@rule("HC231", "desync", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once a step, for all that has changed."""
    yield from (_of_carried(window, row) for row in window.by_phase["optimizer"] if row.port == CARRIED)
    rows = [row for row in window.by_phase["optimizer"] if row.port == CHANGED]
    yield from (_of_option(window, row) for row in rows if row.module == OPTION)
    yield from (_of_state(window, row) for row in rows if row.module == STATE)
    yield from (_of_copy(window, row) for row in rows if row.module == COPY)
    yield from (_of_bit(window, row) for row in rows if row.module == BIT)
    known = {row.site for row in rows if row.module == BIT}
    others = (OPTION, STATE, COPY, BIT)
    changed = [row for row in rows if row.site not in (SITE, *known) and row.module not in others]
    if not changed:
        return
    first = changed[0]
    total = next((row for row in rows if row.site == SITE and row.module == first.module), None)
    step = first.step - first.call
    is_whole = total is not None and share(total) >= WHOLE and not first.call
    is_written = first.module == "value" and first.source is not None  # by a line of the program
    is_meant = is_whole or is_written  # perhaps: that it was written to is proven, that this is wrong is not
    what = f"the state {first.module!r} of {first.site}" if first.module != "value" else f"the parameter {first.site}"
    how = "is gone" if first.op == GONE else "is not what the last update left"
    yield Finding(
        code="HC231",
        kind="desync",
        severity="note" if is_meant else "warning",
        title=f"{what} {how}",
        step=step,
        rank=window.rank,
        phase="optimizer",
        site=first.site,
        port=first.module,
        param=first.site,
        cause="unknown" if is_meant else "program-error",
        source=first.source,
        why=tuple(_why(first, changed, step)),
        then=("training goes on from values that no update made",),
        confidence="possible" if is_meant else "proven",
    )


def _of_bit(window: Window, row: Reading) -> Finding:
    return Finding(
        code="HC231", kind="desync", severity="warning", step=row.step, rank=window.rank, phase="optimizer",
        title=f"one bit of the parameter {row.site} is not what the last update left", site=row.site, port="value",
        param=row.site, cause="hardware-fault", confidence="likely",
        why=(
            f"{row.op}: another sign or exponent, and the same fraction",
            f"all other {row.summary.n - 1} elements are what they were, bit for bit",
        ),
        then=("training goes on from a value that no update made",),
    )  # fmt: skip


def _of_carried(window: Window, row: Reading) -> Finding:
    return Finding(
        code="HC231", kind="desync", severity="warning", step=row.step, rank=window.rank, phase="forward",
        title=f"{row.site} is the state that an evaluation has left, not that of the step before", site=row.site,
        port="value", cause="program-error", confidence="proven", source=row.source,
        why=(
            f"{round(row.summary.sum)} steps before began with the state that the one before them had left",
            f"the loss of the first micro-batch is {row.names[0]}; with what the last step left it is {row.names[1]}",
        ),
        then=("training goes on from the state of other samples",),
        remedy=Remedy(action="keep-state", text="put the state of training back after the evaluation"),
    )  # fmt: skip


def _of_state(window: Window, row: Reading) -> Finding:
    """Return a note that the optimizer's state begins anew: a stage of training may do so on purpose."""
    return Finding(
        code="HC231", kind="desync", severity="note", step=row.step, rank=window.rank, phase="optimizer",
        title="the optimizer's state begins anew", site=row.site, port=STATE, param=row.site,
        why=(f"this optimizer has no state for its {row.summary.n} parameters, which another one had updated before",),
        then=("averages of gradients and bias corrections begin at zero",),
    )  # fmt: skip


def _of_copy(window: Window, row: Reading) -> Finding:
    return Finding(
        code="HC231", kind="desync", severity="warning", step=row.step - row.call, rank=window.rank, phase="optimizer",
        title=f"the parameter {row.site} is not what the optimizer's copy of it became", site=row.site, port="value",
        param=row.site, cause="program-error", confidence="proven",
        why=(
            "the optimizer updates a copy of it, which had its bits at the first update",
            f"{row.summary.sum:.0%} of the places that were looked at are not what the copy is, from step "
            f"{row.step - row.call} to {row.step}, though the program writes to them",
        ),
        then=("forward computes with weights that no update made",),
    )  # fmt: skip


def _of_option(window: Window, row: Reading) -> Finding:
    """Return a note that an option of a parameter group is another one: a program may change it on purpose."""
    number, _, name = row.site.removeprefix("group[").partition("].")
    return Finding(
        code="HC231", kind="desync", severity="note", step=row.step - row.call, rank=window.rank, phase="optimizer",
        title=f"{name} of parameter group {number} is {row.summary.sum:g}, and was {row.op} before",
        site=row.site, port=name,
        why=(f"it was {row.op} at the updates before and stays as it is now",),
        then=("updates are made otherwise from this step on",), limit=float(row.op), actual=row.summary.sum,
    )  # fmt: skip


def _why(first: Reading, changed: list[Reading], step: int) -> Iterator[str]:
    n, n_changed = first.summary.n, round(first.summary.sum)
    if first.op == GONE:
        yield f"the optimizer had it after the update before step {step}, and had none when that step's update began"
    else:
        yield (
            f"{n_changed} of {n} elements that were looked at differ from what they were after the update before "
            f"step {step}"
        )
    if len(changed) > 1:
        others = ", ".join(f"{row.site} ({row.module})" for row in changed[1:4])
        yield f"so do {len(changed) - 1} others: {others}{' ...' if len(changed) > 4 else ''}"
    yield "between other updates that were looked at they stayed"
