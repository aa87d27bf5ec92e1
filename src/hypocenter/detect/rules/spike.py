"""The loss or the gradient's norm jumped, and stayed finite.

What it means
    A value lies far above what was usual: an outlier in the data, a number near a singularity, an update that was too
    large, a program that does something else at this step. It may come back by itself, or not.

How it is decided
    Each value is compared with those before it, in octaves: above their median by a factor of 2 at least, by 6 times
    their usual distance from it, by half as much again as any distance that was seen twice, and by more than what the
    tail of the distances so far lets one expect in 10,000 steps. So a series in which large values are usual jumps
    rarely, a trend or a schedule does not, and a new level counts once. Of an update of fewer micro-batches than
    usual their sum must jump as well as their mean: many programs divide each loss. A jump by itself is a note. In
    PyTorch the step is done again at once, while its inputs are there; where that proves an operation, a tensor or
    samples, they are named, and it is a warning.

What to do
    Look at the place or the samples that are named. Where none are: look at the data of this step, and at what the
    program does at it. Clipping the gradient bounds what a single step can do.

When it is wrong
    When the jump is meant: a new stage of training. A note accuses nobody.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC401", "spike", severity="warning", reads=(), quiet=lambda series: not series.may_jump)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first step of a jump."""
    record = window.record
    if record is None or not window.loss_finite or not window.grads_finite:
        return
    loss = window.history.loss.add(record.loss, record.n_microbatches)
    norm = window.history.norm.add(record.grad_norm)
    jump = loss or norm
    if jump is None:
        return
    what = "the loss" if loss is not None else "the gradient's norm"
    factor = 2.0**jump.octaves
    also = () if loss is None or norm is None else (f"the gradient's norm: {norm.value:.4g}, usually {norm.usual:.4g}",)
    yield Finding(
        code="HC401",
        kind="spike",
        severity="note",
        title=f"{what} jumped to {jump.value:.4g}: {factor:.2g} times what was usual",
        step=window.step,
        rank=window.rank,
        phase="loss" if loss is not None else "grad",
        site="loss" if loss is not None else "grad_norm",
        port="value",
        limit=jump.limit,
        actual=abs(jump.value),
        why=also,
        confidence="possible",
    )
