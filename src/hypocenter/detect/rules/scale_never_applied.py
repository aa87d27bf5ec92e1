"""A loss scale is taken out of gradients that was never in them, or stays in those that are used.

What it means
    Taken out only: `backward` was called on the bare loss and then `scaler.step`, which divides all gradients by the
    scale. They are too small by that factor: with SGD nothing is learned, with Adam they sink towards eps; clipping no
    longer applies; and small gradients underflow as without a scaler. The scaler sees no overflow and doubles the
    scale again and again. In Megatron-Core it is a missing `grad_scale_func`. Put in only: the loss was scaled, and
    `optimizer.step` was called in place of `scaler.step`: gradients are too large by that factor, every clip acts, and
    an overflow is not skipped.

How it is decided
    At two steps the graph from the tensor that `backward` was called on down to the loss holds no multiplication
    by a number of the size of the scale (its square root, at least), of any loss or, in a program of one optimizer, of
    one of several. Silent when the graph cannot be read: an own
    autograd function or a compiled one that returns the loss, a hook, a given seed, a pipeline stage.
    Or at two steps all losses were scaled by a scaler, the optimizer stepped without it, nobody asked for the scale,
    and the norms that it (or a clip before it) saw are those that backward left.

What to do
    `scaler.scale(loss).backward()`, and `scaler.step(optimizer)`. With Megatron-Core:
    `config.grad_scale_func = optimizer.scale_loss`.

When it is wrong
    When the model itself multiplies deep inside by the scale, before anything that is no sum, mean or product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import APPLIED, APPLIED_TO_SOME, LEFT_IN, past, scales, value_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy

SMALLEST_SCALE = 16.0  # below, a factor of the scale is like one that losses are weighted with


@rule("HC213", "config", severity="error", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second step whose loss does not carry the scale, or whose gradients still do."""
    yield from _left_in(window)
    for name in (APPLIED, APPLIED_TO_SOME):
        yield from _not_applied(window, name)


def _not_applied(window: Window, name: str) -> Iterator[Finding]:
    applied = value_of(window, name)
    if applied is None:
        return
    scale, is_all = scales(window), name == APPLIED
    rows = [*past(window, name), (window.step, applied)]
    seen = [step for step, value in rows if step in scale and _is_bare(value, scale[step])]
    if len(seen) != 2 or seen[-1] != window.step:
        return
    first, second = seen
    value = dict(rows)[first]
    yield Finding(
        code="HC213",
        kind="config",
        severity="error",
        title="gradients are divided by a loss scale that was never applied"
        if is_all
        else "one of several losses does not carry the loss scale that all gradients are divided by",
        step=first,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="likely",
        actual=value,
        limit=scale[first],
        why=(
            f"the loss that backward was called on was multiplied by {value:.4g}, and the scaler divides the gradients "
            f"by {scale[first]:,.0f}",
            f"the optimizer used {'gradients' if is_all else 'gradients of that loss'} that are "
            f"{scale[first] / value:,.0f} times too small",
            f"the same at step {second}",
        ),
        remedy=Remedy(action="scale-loss", text="call backward on scaler.scale(loss)"),
    )


def _left_in(window: Window) -> Iterator[Finding]:
    scale, before = value_of(window, LEFT_IN), list(past(window, LEFT_IN))
    if scale is None or scale < SMALLEST_SCALE or len(before) != 1:
        return
    yield Finding(
        code="HC213",
        kind="config",
        severity="error",
        title="the optimizer uses gradients that still carry the loss scale",
        step=before[0][0],
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="likely",
        actual=before[0][1],
        limit=1.0,
        why=(
            f"the loss was scaled by {before[0][1]:,.0f}, and the optimizer stepped without its scaler: the norms it "
            "uses are those that backward left",
            f"the same at step {window.step}",
        ),
        remedy=Remedy(action="step-by-scaler", text="call scaler.step(optimizer) in place of optimizer.step()"),
    )


def _is_bare(applied: float, scale: float) -> bool:
    return scale >= SMALLEST_SCALE and 0.0 < applied < math.sqrt(scale)
