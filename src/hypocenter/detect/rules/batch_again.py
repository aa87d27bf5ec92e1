"""A batch is used again, in a run in which no batch came again before.

What it means
    The program trains twice on the same data: an iterator that was not moved on, a batch that was left in a variable, a
    loader that hands out the same memory, a resumed run that begins its data anew.

How it is decided
    Digests of all tensors that the model and the loss were given, at every step. A batch whose tensors are equal, bit
    for bit, to those of one before, where at least 32 batches did not come again. A new pass over all data in the same
    order, a single batch, and repeated passes over each batch are not remarked on, nor is what is drawn with
    replacement from few samples.

What to do
    Look at how the batch of this step was taken from its loader.

When it is wrong
    When data are drawn with replacement: a batch of few samples comes again by chance (a note).
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.batches import batches_of
from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding

NEAR = 8  # batches: nobody draws the same so soon again by chance


@rule(
    "HC411",
    "data",
    severity="warning",
    reads=("batch",),
    not_in={"mindspore": "the tensors of a batch are not looked at there yet"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first batch that comes again."""
    for microbatch, rows in batches_of(window.by_phase["data"]).items():
        again = window.history.repeats.add(rows, window.step)
        if again is None:
            continue
        where = f"of step {again.step}" if again.step != window.step else "before it in the same step"
        yield Finding(
            code="HC411",
            kind="data",
            severity="warning" if again.n_back <= NEAR else "note",
            title=f"the batch is the one {where} again",
            step=window.step,
            microbatch=microbatch,
            rank=window.rank,
            phase="data",
            site="batch",
            cause="data-repeats",
            why=(
                "all of its tensors are equal, bit for bit, to those of "
                + ("the batch before" if again.n_back == 1 else f"{again.n_back} batches ago"),
                f"none of the {again.n_before} batches before came again",
            ),
            confidence="proven" if again.n_back <= NEAR else "possible",
        )
