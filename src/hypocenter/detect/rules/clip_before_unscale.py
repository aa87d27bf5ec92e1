"""Gradients were clipped while they carried the loss scale.

What it means
    `clip_grad_norm_` or `clip_grad_value_` was called between `backward` and `scaler.step` without
    `scaler.unscale_(optimizer)` before it. The gradients were still multiplied by the loss scale, so nearly every
    step was clipped, and the scaler then divided what was left: the update used gradients of norm max_norm / scale.

How it is decided
    The norm that the clip saw is compared with the one that is left at `scaler.step`: at two steps clipping shrank
    gradients that carried the scale to less than 1 / sqrt(scale) of their size. A threshold that the program has
    itself multiplied by the scale is right and not reported: it grows with the scale, or is a round number only
    after division by it. Without a watched clip, something that shrinks them to one and the same norm counts too.

What to do
    Call `scaler.unscale_(optimizer)` before clipping, once per step.

When it is wrong
    When gradients are meant to be cut to a ten-thousandth of their size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import CLIP_FACTOR, CLIP_NORM, HAND_FACTOR, HAND_NORM, past, row_of, scales, value_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy

SMALLEST_SCALE = 64.0  # below, a factor of the scale cannot be told from usual clipping
SAME = 1e-3  # relative: norms are float32 sums over many elements


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clipped:
    step: int
    scale: float
    factor: float
    norm: float  # as the clip saw it, the scale in it

    @property
    def left(self) -> float:
        """The norm after clipping, with the scale still in it: max_norm."""
        return self.factor * self.norm

    @property
    def is_far_too_much(self) -> bool:
        return self.scale >= SMALLEST_SCALE and self.factor <= 1.0 / math.sqrt(self.scale)


@rule("HC211", "config", severity="error", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second step whose gradients were clipped with the scale in them."""
    named = value_of(window, CLIP_FACTOR) is not None
    site = CLIP_FACTOR if named else HAND_FACTOR
    if value_of(window, site) is None:
        return
    seen = [each for each in _all(window, site) if each.is_far_too_much]
    if len(seen) != 2 or seen[-1].step != window.step or _is_scaled_threshold(seen):
        return
    first, last = seen
    if not named and not (_same(first.left, last.left) and not _same(first.norm, last.norm)):
        return
    row = row_of(window.readings, site)
    name = (row.module if row is not None else "") or "something between backward and scaler.step"
    is_proven = not _same(first.scale, last.scale) and _same(first.left, last.left)
    yield Finding(
        code="HC211",
        kind="config",
        severity="error",
        title="gradients are clipped while they still carry the loss scale",
        step=first.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="proven" if is_proven else "likely",
        actual=first.scale,
        limit=1.0,
        why=(
            f"{name} saw a gradient norm of {first.norm:.4g}; the true one is {first.norm / first.scale:.4g}: "
            f"the ratio is the loss scale, {first.scale:,.0f}",
            f"it left {first.left:.4g}, and the scaler then divides by the scale: "
            f"the update used a gradient of norm {first.left / first.scale:.4g}",
            f"the same at step {last.step}",
        ),
        remedy=Remedy(action="unscale-first", text="call scaler.unscale_(optimizer) before clipping"),
    )


def _all(window: Window, site: str) -> list[_Clipped]:
    """Return every step so far at which this was measured, oldest first."""
    scale = scales(window)
    factors = dict([*past(window, site), (window.step, value_of(window, site) or 0.0)])
    norm = CLIP_NORM if site == CLIP_FACTOR else HAND_NORM
    norms = dict([*past(window, norm), (window.step, value_of(window, norm) or 0.0)])
    return [
        _Clipped(step=step, scale=scale[step], factor=factor, norm=norms[step])
        for step, factor in factors.items()
        if step in scale and norms.get(step)
    ]


def _is_scaled_threshold(seen: list[_Clipped]) -> bool:
    """Return whether the program has multiplied max_norm by the scale: then all is well."""
    first, last = seen
    if not _same(first.scale, last.scale):
        return _same(first.left / first.scale, last.left / last.scale)
    return _is_round(first.left / first.scale) and not _is_round(first.left)


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=SAME)


def _is_round(value: float) -> bool:
    """Return whether it is a number as people write thresholds: with two digits."""
    return value > 0.0 and math.isclose(value, float(f"{value:.1e}"), rel_tol=SAME)
