"""A norm uses statistics that nobody has measured, or that others than the trained batches have moved.

What it means
    A batch norm keeps the mean and the variance of what it has seen, for the mode of evaluation. They are still the 0
    and 1 that it was made with: in that mode it normalises nothing. Its momentum is 0; or an average of the weights
    follows the parameters and leaves the buffers as they were. Or it is called in the mode of training by what trains
    nothing, as an evaluation without `eval()`, whose data its statistics then hold. Or it was trained, its weight is
    frozen (`requires_grad_(False)`), and it stays in the mode of training: its statistics are not frozen with it.

How it is decided
    At every eighth step up to the 64th, then at steps that double: mean 0 and variance 1, all of them, at two looks in
    a row. In the mode of training where it has counted batches; else where it has counted none and its own weight,
    which no optimizer holds, is not what it was made with: a copy of what was trained. Of models that the program
    calls.

    Or, after four updates of its weight with as many calls of it in training each, there are at least two calls more
    before one update, and as many as ever before the next; and so once more, with no more gradients taken through them
    than usual (who adapts a model to a task tests it so). Statistics that were begun anew meanwhile
    (`reset_running_stats`) are measured on purpose.

    Or its weight was trained at two looks, one each four updates, and is frozen from then on, at four looks and more,
    while it is in the mode of training and its statistics move: a note. A warning where what it would give in
    evaluation, for what it was measured on when it was frozen, has moved by half of its usual size.

What to do
    Leave the momentum at 0.1; copy the buffers into the average, or measure them at its end
    (`torch.optim.swa_utils.update_bn`). Call `model.eval()` before what does not train, and `model.train()` after it.
    Set what is frozen to evaluation, each time after `model.train()`.

When it is wrong
    A copy whose norms were folded into other layers. Who measures the statistics of what is trained now and then on
    purpose, without beginning them anew. Who lets the statistics of frozen weights follow new data on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import FROZEN_STATISTICS, MOVED, MUCH, UNMEASURED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC263", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "it is not looked at there yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second look, for each norm without statistics of its own."""
    for row in window.by_phase["optimizer"]:
        if row.port == MOVED:
            yield Finding(
                code="HC263", kind="config", severity="warning", step=row.call, rank=window.rank, phase="forward",
                title=f"the statistics of {row.site} are moved by batches that nothing is trained on", site=row.site,
                cause="program-error", confidence="likely",
                why=(
                    f"before this update it was called in training {row.summary.sum:.0f} times more than the "
                    f"{row.module} of other updates, and so it was before that of step {row.step}",
                ),
                then=("in the mode of evaluation it uses statistics of other data",),
                remedy=Remedy(action="evaluate", text="model.eval() before the evaluation, and model.train() after it"),
            )  # fmt: skip
        if row.port == FROZEN_STATISTICS:
            yield Finding(
                code="HC263", kind="config", severity="warning" if row.summary.sum > MUCH else "note", step=row.call,
                rank=window.rank, phase="forward", site=row.site, cause="program-error", confidence="likely",
                title=f"{row.site} is frozen, and its statistics go on moving", limit=MUCH, actual=row.summary.sum,
                why=(
                    "it was trained, its weight asks for no gradient any more, and it is in the mode of training",
                    f"for what it was measured on, what it gives in evaluation has moved by {row.summary.sum:.2g} of "
                    f"its usual size at step {row.step}",
                ),
                then=("what is frozen computes something else in evaluation than when it was frozen",),
                remedy=Remedy(action="evaluate", text="eval() what is frozen, each time after model.train()"),
            )  # fmt: skip
        if row.port == UNMEASURED:
            is_training = row.module == "training"
            why = (
                f"it was called in training, and its momentum is {row.summary.sum:g}"
                if is_training
                else "it has counted no batch, although its weight has changed"
            )
            yield Finding(
                code="HC263", kind="config", severity="warning", step=row.step, rank=window.rank, phase="forward",
                title=f"the statistics of {row.site} are those it was made with", site=row.site, cause="program-error",
                confidence="proven" if is_training else "likely", why=(why, "its mean is 0, its variance 1"),
                then=("in the mode of evaluation it normalises nothing",),
                remedy=Remedy(action="measure", text="let it measure in training, and copy buffers into averages"),
            )  # fmt: skip
