"""float16 gradients underflow without a loss scale.

What it means
    The backward pass runs in float16, and nobody scales the loss. Gradients below 2^-25 (3e-8) become exactly zero,
    those just above lose most of their bits. The layers concerned learn little or nothing, without any NaN.

How it is decided
    By replay: a step of a float16 run without a scaler, in which a gradient is exactly zero or of suspiciously small
    norm, is done again with the loss multiplied by a power of two. Elements that are then nonzero where the run has
    exact zeros are lost: reported when they are a tenth of all, or a whole parameter's: proven. From a recording at
    level `modules`: as HC203, likely.

What to do
    Scale the loss (torch.amp.GradScaler), or use bfloat16, which has the range of float32.

When it is wrong
    When the parameters whose gradients vanish need not learn any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.underflow import finding, starved
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC206", "underflow", severity="warning", reads=("half-grad",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire when most float16 gradients lie at the lower end and no loss scale lifts them."""
    if window.record is None or window.loss_scale is not None or window.entry is not None:
        return
    found = starved(window)
    if found is None:
        return
    title, room = "float16 gradients underflow: there is no loss scale", f"a scale of 2^{found.octaves} would fit"
    yield finding(window, found, code="HC206", title=title, room=room)
