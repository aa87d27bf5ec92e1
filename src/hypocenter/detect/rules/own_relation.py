"""A relation of the program's own does not hold.

What it means
    The authors of a model have said with `@hypocenter.relation` what must not matter to it. In this run it does.

How it is decided
    The inputs of the last micro-batch of a healthy step are changed as the relation says, in a replay, and the outputs,
    turned back as it says, must stay to within rounding. They move again when it is done again, and random numbers are
    not the reason.

What to do
    Look for what depends on it; or change what the relation says.

When it is wrong
    Where the relation holds only roughly: it is judged by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.relation_rows import broken
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC245",
    "data",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "relations are looked at in replays of torch only, so far"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    remedy = Remedy(action="look-at-the-relation", text="look for what in the model depends on it")
    title = "a relation of the program's own does not hold"
    yield from broken(window, "HC245", title=title, cause="unknown", remedy=remedy)
