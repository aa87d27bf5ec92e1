"""One hook hangs twice on the same module or parameter, and acts twice.

What it means
    A function that changes gradients, inputs or outputs on their way was registered once more: at each evaluation, in
    each epoch, for each name of a tied parameter. It acts as often as it hangs: a factor of 0.5 becomes 0.25. Nothing
    is NaN, and a step that is done again does the same, for the hooks hang there.

How it is decided
    Hooks of modules, and those of parameters on their gradients, are looked at when some were registered. Two are one
    if they have the same code and the same values in it: closure, defaults, arguments of a `partial`, the object that
    a method is of. Where one hangs twice, the last micro-batch is done again as it is, and with what the second one
    returns thrown away. It fires if a gradient is another one then, beyond rounding.

What to do
    Keep the handle that registering returns and `remove()` it, or register the hook once.

When it is wrong
    Where a function is meant to act twice, at one place.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import HUNG_TWICE
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC266", "desync", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "its hooks are not looked at"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first update at which it hangs twice."""
    for row in window.by_phase["optimizer"]:
        if row.port == HUNG_TWICE:
            whose = row.names[0] if row.names else row.site
            yield Finding(
                code="HC266", kind="desync", severity="warning", step=row.step, rank=window.rank, phase="forward",
                site=row.site, source=row.source, cause="state-changed", confidence="proven",
                title=f"a {row.module} hangs {row.call} times on {row.site}, and acts as often",
                why=(
                    f"{row.op} is registered {row.call} times, with the same values",
                    f"the micro-batch, done again with only one of them, comes to another gradient: that of {whose} "
                    f"is off by {row.summary.sum:.2g} of its norm",
                ),
                then=("what it does to values is done to what it has already done",),
                remedy=Remedy(action="hang-once", text="keep the handle and remove() it before you register it again"),
            )  # fmt: skip
