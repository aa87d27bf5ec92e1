"""float16 gradients underflow: the loss scale is too low, or there is none.

What it means
    The backward pass runs in float16, and gradients, times the loss scale if there is one, are so small that float16
    turns them into zero (below 2^-25, or 3e-8) or keeps one or two bits of them. The layers concerned learn little or
    nothing, without any NaN.

How it is decided
    By replay: a step in which a gradient is exactly zero, or of suspiciously small norm, is done again with a larger
    scale. Elements that are then nonzero where the run has exact zeros are lost. Reported when they are a quarter of
    all under a scale, a tenth of all without one, or a whole parameter's: proven. From a recording at level `modules`:
    in three recorded steps at least half of the float16 gradients have a tenth of their nonzero values below 2^-22, and
    the largest one leaves 8 octaves to 65504: likely.

What to do
    Raise the scale: a dynamic scaler (torch.amp.GradScaler), a higher fixed one, or a shorter growth_interval. If it
    had fallen before, look for what made it fall (HC201, HC202). Or use bfloat16, which has the range of float32.

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
    """Fire when most float16 gradients lie at the lower end of the format, and could be larger."""
    scale = window.loss_scale
    if scale is None and (window.record is None or window.entry is not None):
        return  # whether there is a scale is not known
    found = starved(window)
    if found is None:
        return
    if scale is None:
        title, room = "float16 gradients underflow: there is no loss scale", f"a scale of 2^{found.octaves} would fit"
    else:
        at = f"{scale:,.0f}" if scale >= 1 else f"{scale:.2g}"
        title, room = f"gradients underflow at loss scale {at}", f"the scale could be 2^{found.octaves} higher"
    yield finding(window, found, title=title, room=room)
