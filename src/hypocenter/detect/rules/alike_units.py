"""All units of a layer are the same, and stay so.

What it means
    All rows of a weight are equal and get equal gradients, so that they are equal after every update: a layer of many
    units computes what a single one could. The usual reason is a weight that was set to a constant.

How it is decided
    At steps 0 and 8, of weights of two dimensions and more: all rows equal to the bit and not 0, all rows of the
    gradient equal to 64 roundings of its largest value. A weight of zeros is left alone: the rows of its gradient tell.

What to do
    Draw the initial weight at random.

When it is wrong
    Not known: equal units with equal gradients cannot become different but by noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import ALIKE
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC254", "config", severity="warning", reads=("optimizer",), asked="rows",
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    for row in window.by_phase["optimizer"]:
        if row.port == ALIKE:
            n = round(row.summary.sum)
            yield Finding(
                code="HC254", kind="config", severity="warning", step=row.step, rank=window.rank, site=row.site,
                title=f"all units of {row.site} are the same", phase="optimizer", cause="init-mismatch",
                confidence="proven", why=("all rows of the weight are equal, and so are those of its gradient",
                                          *((f"{n} weights are like it",) if n > 1 else ())),
                then=("every update leaves them equal: the layer has one unit",),
                remedy=Remedy(action="initialise-at-random", text="draw the initial weight at random"),
            )  # fmt: skip
