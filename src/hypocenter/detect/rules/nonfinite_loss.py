"""The loss is not finite.

What it means
    The loss of at least one micro-batch was NaN or infinite. The gradients that follow from it are too.

How it is decided
    The recorded loss of the step or of a micro-batch is not finite. One that the program throws away, and goes on
    without, is a warning: the program looked at its number, and no backward began with it or with anything beside it.

What to do
    Read the cause, which a replay of the step finds. Without one: record the run again with replay switched on.

When it is wrong
    When the program reports an infinite loss on purpose, to mark a batch that it then ignores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC102", "nonfinite", severity="error", reads=("nonfinite",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on a loss that is NaN or infinite."""
    if window.loss_finite:
        return
    rows = [r for r in window.by_phase["loss"] if r.port == "value" and r.summary.n_nonfinite]
    loss = window.record.loss if window.record is not None else None
    is_nan = any(r.summary.n_nan for r in rows) or (not rows and loss is not None and math.isnan(loss))
    yield Finding(
        code="HC102",
        kind="nonfinite",
        severity="error",
        title=f"the loss is {'NaN' if is_nan else 'infinite'}",
        step=window.step,
        microbatch=rows[0].microbatch if rows else 0,
        rank=window.rank,
        phase="loss",
        site="loss",
        port="value",
        chips=("NaN ×1",) if is_nan else ("inf ×1",),
    )
