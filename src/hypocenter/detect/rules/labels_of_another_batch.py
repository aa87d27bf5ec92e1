"""The loss compares each batch with the labels of another batch.

What it means
    Labels and inputs are taken from different batches: those of the batch before are left in a variable, or a queue of
    one of the two is one longer. There is nothing to learn from such pairs.

How it is decided
    Tensors of a batch are followed from where they come: a batch of a `DataLoader`, a tensor of indices, the place at
    which a tensor is cut, a tensor that others are computed from. At four micro-batches in a row, among the first 16
    steps and six of each 64, what is compared with what the model has computed is made of what the model was given
    some micro-batches before, and nothing of it is made of what the model is given now. What was an input itself before
    is no label, and what the model has computed before, and is given now, counts as given now.

    In MindSpore only arguments of a gradient function are looked at that come from the iterator of a data set as they
    are: what a program computes outside of that call is not followed there.

What to do
    Look at how inputs and labels of the named line were taken.

When it is wrong
    A model that keeps in attributes what it was given before, and is trained to tell what that was.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import OF_ANOTHER
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC414", "data", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once, when it was seen often enough."""
    for row in window.by_phase["optimizer"]:
        if row.port != OF_ANOTHER:
            continue
        n, n_back = round(row.summary.sum), row.call
        before = "before" if n_back == 1 else f"{n_back} micro-batches ago"
        yield Finding(
            code="HC414", kind="data", severity="warning", step=window.step, rank=window.rank, phase="loss",
            title="each batch is compared with the labels of another batch", site="loss", cause="data-mismatch",
            source=row.source,
            why=(
                f"at {n} micro-batches in a row the labels were made of what the model was given {before}, and of "
                "nothing that it was given with them",
            ),
            then=("there is nothing to learn from such pairs",), confidence="likely",
        )  # fmt: skip
