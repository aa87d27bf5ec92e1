"""The loss scale is so low that gradients underflow.

What it means
    Gradients times the loss scale are so small that float16 turns them into zero (below 2^-25) or keeps one or two
    bits of them. The layers concerned learn little or nothing, without any NaN.

How it is decided
    By replay: a step whose gradients are suspiciously small is done again with a larger scale; a quarter of all
    gradient elements at least are then nonzero where the run has exact zeros: proven. From a recording at level
    `modules`: in three recorded steps at least half of the float16 gradients have a tenth of their nonzero values
    below 2^-22, and the largest one leaves 8 octaves to 65504: likely.

What to do
    Raise the scale: a dynamic scaler, a higher fixed one, or a shorter growth_interval. If it had fallen before, look
    for what made it fall (HC201, HC202).

When it is wrong
    When the small gradients belong to a part that hardly needs to learn. A distribution so wide that no scale fits all
    of it is not reported here.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.underflow import finding, starved
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC203", "underflow", severity="warning", reads=("half-grad",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire when most float16 gradients lie at the lower end under a loss scale that could be higher."""
    scale = window.loss_scale
    found = None if scale is None else starved(window)
    if found is None or scale is None:
        return
    at = f"loss scale {scale:,.0f}" if scale >= 1 else f"loss scale {scale:.2g}"
    room = f"the scale could be 2^{found.octaves} higher"
    yield finding(window, found, code="HC203", title=f"gradients underflow at {at}", room=room)
