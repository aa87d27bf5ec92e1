"""Gradients were unscaled twice, too early, or with another scale than their loss was multiplied by.

What it means
    The optimizer used gradients of the wrong size. Either the program divided them by the scale itself and
    `scaler.step` did it again: they are too small by the factor of the scale. Or a further `backward` came after
    `scaler.unscale_`: its part is too large by that factor. Or `scaler.update()` came between `backward` and `step`,
    for instance between the steps of two optimizers, or MindSpore's `scaler.adjust()` between `backward` and
    `unscale`, and had changed the scale: a part is off by a factor of 2.

How it is decided
    Twice: at two steps the norm fell, between `backward` and `scaler.step`, to exactly 1 / scale of itself (within
    1 %), and either the program had read the scale or the scale was not the same at both. Too early: a backward of
    a scaled loss changed gradients that `unscale_` had been called for. Another scale: the gradients of an
    optimizer hold the backward of a loss that was multiplied before the last change of the scale.

What to do
    Leave the division to `scaler.unscale_`, call it once after the last backward of a step, and call
    `scaler.update()` once per iteration after all optimizers have stepped; `scaler.adjust()` after `unscale`.

When it is wrong
    When a program that reads the scale for its log divides gradients by a number of tokens that equals it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import ADJUST, ASKED_SCALE, HAND_FACTOR, LATE, OTHER_SCALE, past, row_of, scales, value_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Remedy, Severity

SMALLEST_SCALE = 4.0  # below, dividing by the scale cannot be told from dividing by a number of micro-batches
EXACT = 1e-2  # relative; the scale is a power of two and norms are float32


@rule("HC212", "config", severity="error", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once for each way: divided twice, unscaled too early, or by another scale."""
    yield from _twice(window)
    yield from _too_early(window)
    yield from _another_scale(window)


def _twice(window: Window) -> Iterator[Finding]:
    factor = value_of(window, HAND_FACTOR)
    if factor is None:
        return
    scale = scales(window)
    factors = [*past(window, HAND_FACTOR), (window.step, factor)]
    seen = [step for step, f in factors if step in scale and _is_inverse(f, scale[step])]
    if len(seen) < 2 or seen[-1] != window.step:
        return
    if not _is_sure(window, seen, scale) or _is_sure(window, seen[:-1], scale):
        return  # not yet, or said before
    first, second = seen[0], seen[-1]
    yield _finding(
        window,
        first,
        "error",
        "gradients are divided by the loss scale twice",
        (
            f"between backward and scaler.step the gradient norm fell to 1 / {scale[first]:,.0f} of itself: "
            "the loss scale. Then the scaler divides by it again",
            f"the optimizer used gradients that are {scale[first]:,.0f} times too small",
            f"the same at step {second}",
        ),
        "leave the division to scaler.unscale_(optimizer), or to scaler.step(optimizer) alone",
        actual=1.0 / scale[first] ** 2,
        limit=1.0 / scale[first],
        is_proven=len({scale[s] for s in seen}) > 1,
    )


def _is_inverse(factor: float, scale: float) -> bool:
    return scale >= SMALLEST_SCALE and math.isclose(factor * scale, 1.0, rel_tol=EXACT)


def _is_sure(window: Window, seen: list[int], scale: dict[int, float]) -> bool:
    """Return whether it was seen at two steps, and the divisor is the scale, not a number that happens to equal it."""
    if len(seen) < 2:
        return False
    asked = dict([*past(window, ASKED_SCALE), (window.step, value_of(window, ASKED_SCALE) or 0.0)])
    return len({scale[s] for s in seen}) > 1 or all(asked.get(s) for s in seen)


def _too_early(window: Window) -> Iterator[Finding]:
    n_late, scale = value_of(window, LATE), scales(window).get(window.step)
    if not n_late or scale is None or scale < SMALLEST_SCALE or any(past(window, LATE)):
        return
    yield _finding(
        window,
        window.step,
        "error",
        "gradients are accumulated onto gradients that are already unscaled",
        (
            f"scaler.unscale_ was called before the last backward of the step: {n_late:.0f} more added gradients "
            f"that carry the loss scale, {scale:,.0f}",
            f"their part of the update is {scale:,.0f} times too large",
        ),
        "call scaler.unscale_(optimizer) once per step, after the last backward",
        actual=scale,
        limit=1.0,
        is_proven=True,
    )


def _another_scale(window: Window) -> Iterator[Finding]:
    other, scale = value_of(window, OTHER_SCALE), scales(window).get(window.step)
    if not other or scale is None or any(past(window, OTHER_SCALE)):
        return
    row = row_of(window.readings, OTHER_SCALE)
    is_adjust = row is not None and row.module == ADJUST
    call, until = ("adjust", "unscale") if is_adjust else ("update", "step")
    last = "scaler.unscale() has divided the gradients" if is_adjust else "every optimizer has stepped"
    yield _finding(
        window,
        window.step,
        "warning",
        "gradients are unscaled with another scale than their loss was multiplied by",
        (
            f"scaler.{call}() changed the scale between backward and {until}: the loss was multiplied by {other:,.6g}, "
            f"the gradients are divided by {scale:,.6g}",
            f"their part of the update is off by a factor of {other / scale:g}",
        ),
        f"call scaler.{call}() once per iteration, after {last}",
        actual=other,
        limit=scale,
        is_proven=True,
    )


def _finding(
    window: Window,
    step: int,
    severity: Severity,
    title: str,
    why: tuple[str, ...],
    fix: str,
    *,
    actual: float,
    limit: float,
    is_proven: bool,
) -> Finding:
    return Finding(
        code="HC212",
        kind="config",
        severity=severity,
        title=title,
        step=step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="proven" if is_proven else "likely",
        actual=actual,
        limit=limit,
        why=why,
        remedy=Remedy(action="unscale-once", text=fix),
    )
