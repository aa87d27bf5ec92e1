"""A parameter is not finite after the update.

What it means
    The optimizer wrote NaN or infinity into a parameter although its gradient was finite: a division by zero in
    the update, an overflow of the format of the parameter or of the optimizer's state. All later steps use it.

How it is decided
    A parameter's reading holds non-finite values, the gradients of the same step were finite, and the parameter
    was finite whenever it was read before.

What to do
    Look at the optimizer's eps, its state's format and the learning rate; restart from the last good
    checkpoint.

When it is wrong
    When a program keeps infinity in a frozen parameter on purpose, as a mask: it is then there in the first
    reading, and only a note.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding


@rule("HC103", "nonfinite", severity="error", reads=("nonfinite",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on the first non-finite reading of a parameter after finite gradients."""
    if not (window.grads_finite and window.loss_finite):
        return
    rows = [r for r in window.by_phase["param"] if r.summary.n_nonfinite and not r.literal_inf]
    rows = [r for r in rows if (r.site, r.port) not in window.history.healthy_nonfinite]
    if not rows:
        return
    names = sorted({r.site for r in rows})
    is_first_step = not window.history.records
    yield Finding(
        code="HC103",
        kind="nonfinite",
        severity="note" if is_first_step else "error",
        title=f"parameter {names[0]} is not finite" if len(names) == 1 else f"{len(names)} parameters are not finite",
        step=window.step,
        rank=window.rank,
        phase="param",
        site=rows[0].site,
        port=rows[0].port,
        param=names[0],
        limit=0.0,
        actual=float(len(names)),
    )
