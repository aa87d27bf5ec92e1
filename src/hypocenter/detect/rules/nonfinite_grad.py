"""A gradient is not finite.

What it means
    At least one parameter's gradient held NaN or infinity when the optimizer was about to use it. The update
    would destroy the parameter; clipping by norm would spread it to all parameters first.

How it is decided
    The number of parameters with a non-finite gradient is above 0, or the gradient norm is not finite. A step
    that the loss scaler skipped is not reported as long as the loss is finite, the scale is at least 1 and the
    replay did not show that the gradient is bad without the scale too: backing off is how a scaler works, see
    HC106.

What to do
    Read the cause, which a replay of the step finds. Without one: record the run again with replay switched on.

When it is wrong
    Never as a fact. It may be harmless if the program checks gradients itself and throws such steps away.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding

OF_THE_SCALE = "-skipped-step"  # end of the id of evidence about a skip that a replay at scale 1 found finite


@rule("HC101", "nonfinite", severity="error", reads=("nonfinite",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on a bad gradient that no scaler will cure."""
    if window.grads_finite or _backs_off(window):
        return
    bad = [r for r in window.by_phase["grad"] if r.port != "value" and r.summary.n_nonfinite]
    n_bad = max(len({r.site for r in bad}), window.record.n_bad_grads if window.record is not None else 0)
    what = "1 gradient is" if n_bad == 1 else f"{n_bad} gradients are" if n_bad else "the gradient norm is"
    only = bad[0].site if n_bad == 1 and bad else None
    yield Finding(
        code="HC101",
        kind="nonfinite",
        severity="error",
        title=f"{what} not finite",
        step=window.step,
        rank=window.rank,
        phase="grad",
        site=only,
        port="grad",
        param=only,
        limit=0.0,
        actual=float(n_bad) if n_bad else None,
    )


def _backs_off(window: Window) -> bool:
    record = window.record
    if record is None or not record.skipped or not window.loss_finite:
        return False
    if record.finding and not record.finding.endswith(OF_THE_SCALE):
        return False
    return record.loss_scale is not None and record.loss_scale >= 1.0
