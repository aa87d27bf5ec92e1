"""A model is trained in the mode of evaluation.

What it means
    The forward of training ran after `model.eval()`: dropout is off, norms use the statistics that they have kept and
    do not update them. Mostly `model.train()` is missing after an evaluation, or after loading a model that is given in
    that mode (`from_pretrained` does). The loss looks better than before; the model learns worse.

How it is decided
    At each update, the mode of the modules that the program called for its last micro-batch. A warning: in the mode of
    training at eight updates in a row, or ever since, and then in the other at four in a row. In the other from the
    first update on is a note. Only of modules whose `forward` asks for the mode, dropout of probability 0 left out,
    and not of those that are frozen as a whole.

What to do
    Call `model.train()` before the training step, and `model.eval()` only around an evaluation.

When it is wrong
    Who switches dropout off for the last part of a training on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import IN_EVALUATION, RETURNED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC237", "config", severity="warning", reads=("optimizer",), asked="rows",
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire once a step, for the first of the modules that are trained in evaluation mode."""
    rows = [row for row in window.by_phase["optimizer"] if row.port == IN_EVALUATION]
    if not rows:
        return
    first = next((row for row in rows if row.module == RETURNED), rows[0])
    is_new = first.module != RETURNED
    begin = first.step - round(first.summary.sum) + 1
    name = first.site or "the model"
    yield Finding(
        code="HC237",
        kind="config",
        severity="note" if is_new else "warning",
        title=f"{name} is trained in evaluation mode",
        step=begin,
        rank=window.rank,
        phase="forward",
        site=first.site,
        cause="mode-switched",
        confidence="likely",
        why=(
            f"since step {begin} its forward runs in evaluation mode{'' if is_new else ', before in training mode'}",
            f"{first.call} of its modules do something else then: dropout, norms with statistics",
        ),
        then=("the model learns without them",),
        remedy=Remedy(action="train-mode", text="call model.train() before the training step"),
    )
