"""A loss scaler is used with bfloat16.

What it means
    bfloat16 has the range of float32, so gradients do not underflow and need no loss scale. A scale that is a power
    of two changes no digit of them: it does no harm, and costs a pass over the gradients and a wait for the device
    at each step. The scale never meets an overflow, so it doubles until it reaches the top of float32, and from then
    on every attempt to go higher skips an update.

How it is decided
    An enabled scaler steps, the model runs under autocast to bfloat16 or has bfloat16 gradients, and nothing of type
    float16 is seen.

What to do
    Leave the scaler out: `GradScaler(enabled=dtype == torch.float16)`.

When it is wrong
    When a part of the model switches to float16 inside. It is only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import BFLOAT16, past, row_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule("HC217", "config", severity="note", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire a note once."""
    if row_of(window.readings, BFLOAT16) is None or any(past(window, BFLOAT16)):
        return
    scale = window.record.loss_scale if window.record is not None else None
    yield Finding(
        code="HC217",
        kind="config",
        severity="note",
        title="a loss scaler is used with bfloat16, which needs none",
        step=window.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="likely",
        actual=scale,
        why=("nothing of type float16 was seen in a step of an enabled loss scaler",),
        remedy=Remedy(action="no-scaler", text="leave the loss scaler out, or make it with enabled=False"),
    )
