"""An update was skipped.

What it means
    The loss scaler saw a gradient that was not finite, skipped the update and lowered the scale. It does this
    on purpose: it starts too high and backs off until the scale fits, and tries a higher one from time to time.

How it is decided
    The step record says that the update was skipped.

What to do
    Nothing, if the scale settles. If every step is skipped, nothing is learned: look at the errors of the same
    run.

When it is wrong
    It is a fact, and only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC106", "nonfinite", severity="note", reads=())
def check(window: Window) -> Iterator[Finding]:
    """Note a skipped update."""
    record = window.record
    if record is None or not record.skipped:
        return
    size = record.loss_scale
    scale = "" if size is None else f" at loss scale {size:,.0f}" if size >= 1 else f" at loss scale {size:g}"
    yield Finding(
        code="HC106",
        kind="nonfinite",
        severity="note",
        title=f"the update was skipped{scale}",
        step=window.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        actual=record.loss_scale,
    )
