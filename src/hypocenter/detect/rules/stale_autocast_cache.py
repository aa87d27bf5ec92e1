"""The model computes with weights from before the last updates: autocast's cache was never emptied.

What it means
    Autocast keeps the half-precision casts of float32 weights until the outermost `with torch.autocast(...)` ends.
    Here the block holds several updates: the optimizer changes the weights, and forward goes on with the old casts.
    The loss does not move, and gradients are those of the old weights.

How it is decided
    An optimizer updates while autocast and its cache are on. Then the micro-batch is replayed with the cache off:
    at the first such step the loss comes out bit for bit the same, and at two later ones it does not. (A forward
    without gradients in the same block was another way to spoil the cache; current torch casts with gradients on,
    and it does no harm.)

What to do
    Open the autocast block anew for each forward, and end it before the optimizer steps.

When it is wrong
    When forward is not repeatable in a way that shows only after an update.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import STALE, past, value_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy


@rule(
    "HC218",
    "stagnation",
    severity="error",
    reads=("optimizer",),
    asked="rows",
    not_in={"mindspore": "MindSpore has no autocast block that could keep casts of weights: each forward casts anew"},
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second step that differs, after a first that did not."""
    now = value_of(window, STALE)
    before = list(past(window, STALE))
    if now is None or not now > 0.0 or len(before) != 2:
        return
    (_, control), (step, error) = before
    if control != 0.0 or not error > 0.0:
        return
    yield Finding(
        code="HC218",
        kind="stagnation",
        severity="error",
        title="the model computes with old weights: the autocast block holds several updates",
        step=step,
        rank=window.rank,
        phase="forward",
        cause="config-mismatch",
        confidence="proven",
        actual=error,
        limit=0.0,
        why=(
            "the optimizer updates inside an autocast block that is not left between steps, so the casts of the "
            "weights that autocast keeps are never renewed",
            f"replayed with the weights as they are, the loss differs by {100 * error:.2g} % at step {step} and by "
            f"{100 * now:.2g} % at step {window.step}; before the first update it was the same bit for bit",
        ),
        remedy=Remedy(action="autocast-per-forward", text="open the autocast block anew for each forward"),
    )
