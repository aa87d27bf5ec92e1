"""Gradients are changed after the optimizer has used them.

What it means
    Between the update and the next backward the program changes gradients that it then throws away: they are averaged
    over ranks, clipped, unscaled or masked too late. What the optimizer has used was not yet what was meant.

How it is decided
    The smallest gradient of an update, up to step 16: four updates in a row it is another one when the next backward
    begins than it was in the update, not zero, and no gradient of its parameter any more.

What to do
    Move what changes gradients before `optimizer.step()`.

When it is wrong
    Where a program reuses the memory of its gradients for something else.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import CHANGED_AFTER
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC257", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "it is not looked at there yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    for row in window.by_phase["optimizer"]:
        if row.port == CHANGED_AFTER:
            n = round(row.summary.sum)
            yield Finding(
                code="HC257", kind="config", severity="warning", step=row.step, rank=window.rank, site=row.site,
                title="gradients are changed after the optimizer has used them", phase="optimizer",
                cause="state-changed", confidence="likely",
                why=(f"after {n} updates in a row the gradient of {row.site} was another one than in the update",),
                then=("the update has used what it was before",),
                remedy=Remedy(action="change-before-step", text="move what changes gradients before optimizer.step()"),
            )  # fmt: skip
