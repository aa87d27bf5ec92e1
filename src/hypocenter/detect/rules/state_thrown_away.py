"""An optimizer's state is thrown away again and again, or is that of another parameter.

What it means
    The program makes a new optimizer for the same parameters, in each epoch or every few steps, and goes on training
    with it. Momentum, the averages of Adam and the count of steps begin anew each time: Adam's first steps are as large
    as the learning rate whatever the gradient is, and nothing is ever averaged. Or a resume puts state into the wrong
    place: parameters were put together in another order, two averages were exchanged, a rank has read another's file.

How it is decided
    Twice in a row an optimizer without state makes an update of parameters that another one with state has updated
    before, at the same learning rate, and nothing has written to them in between. One new optimizer is a new stage of
    training, and so is one with other options or parameters, or after modules or masks of the model were changed; one
    that follows a load is a resumed run: nothing is said.

    Or an optimizer begins with state, for parameters that are what they were when a `state_dict` was asked for in the
    same process, and what it has is, bit for bit, what another parameter had then, or another state of the same one; or
    what most parameters have is none of that, and further than half of its norm from what they had.

What to do
    Make the optimizer once, before the loop; to change the learning rate, set it in `param_groups` or use a scheduler.
    Restore state by the names of parameters, or make the optimizer of the same list in the same order.

When it is wrong
    Who restarts an optimizer on purpose, at the same learning rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import STATE_LOST, STATE_OF_ANOTHER
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy


@rule(
    "HC259", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "an optimizer is part of a compiled step there: it is not looked at yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen again."""
    for row in window.by_phase["optimizer"]:
        if row.port == STATE_OF_ANOTHER and not row.op:
            yield _of_nobody(window, row)
        elif row.port == STATE_OF_ANOTHER:
            n = round(row.summary.sum)
            yield Finding(
                code="HC259", kind="config", severity="warning", step=row.step, rank=window.rank, phase="optimizer",
                title=f"the state {row.module!r} of {row.site} is what {row.op!r} of {row.names[0]} was",
                site=row.site, port=row.module, param=row.site, cause="program-error", confidence="proven",
                why=(
                    "bit for bit, of what was there when the state was saved; the weights are those of that time",
                    f"{n} {'state is' if n == 1 else 'states are'} in the wrong place",
                ),
                then=("the optimizer goes on from averages of other gradients",),
                remedy=Remedy(action="restore-by-name", text="restore state by the names of the parameters"),
            )  # fmt: skip
        if row.port == STATE_LOST:
            yield Finding(
                code="HC259", kind="config", severity="warning", step=row.step, rank=window.rank,
                title="the optimizer is made anew, and its state is thrown away", phase="optimizer",
                cause="program-error", confidence="proven",
                why=(f"{row.summary.sum:.0f} times a new {row.module} without state took over from the last one",),
                then=("momentum and averages begin anew each time",),
                remedy=Remedy(action="make-it-once", text="make the optimizer once, before the loop"),
            )  # fmt: skip


def _of_nobody(window: Window, row: Reading) -> Finding:
    n = round(row.summary.sum)
    return Finding(
        code="HC259", kind="config", severity="warning", step=row.step, rank=window.rank, phase="optimizer",
        title=f"the state {row.module!r} of {row.site} is not what it was when it was saved",
        site=row.site, port=row.module, param=row.site, cause="program-error", confidence="likely",
        why=(
            "the weights are those of that time, bit for bit, and the state is none of those that were there",
            f"so {'is 1 state' if n == 1 else f'are {n} states'} of the optimizer",
        ),
        then=("the optimizer goes on from averages of other gradients",),
        remedy=Remedy(action="restore-own-state", text="let each rank read its own state, of the step of the weights"),
    )  # fmt: skip
