"""The loss is below zero.

What it means
    Cross-entropy, squared error and most other losses cannot be negative. Ours became so: labels outside their range,
    weights of the wrong sign, or a log of something above one.

How it is decided
    The recorded loss of a step is below -1e-6 and that of the step before it was not.

What to do
    Look at the labels and weights of that step's batch.

When it is wrong
    With losses that may be negative: policy gradients, log-likelihoods of densities, an ELBO. Then leave this rule out.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding

LOWEST = -1e-6  # a loss of zero may be rounded to just below it


@rule("EX1", "data", severity="warning", reads=("scalar",))
def check(window: Window) -> Iterator[Finding]:
    """Fire where the loss becomes negative."""
    loss = window.record.loss if window.record is not None else None
    was = window.history.records[-1].loss if window.history.records else None
    if loss is None or not loss < LOWEST or (was is not None and was < LOWEST):
        return
    yield Finding(
        code="EX1",
        kind="data",
        severity="warning",
        title="the loss is below zero",
        step=window.step,
        rank=window.rank,
        phase="loss",
        site="loss",
        port="value",
        limit=LOWEST,
        actual=loss,
    )
