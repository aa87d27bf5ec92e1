"""The loss scale grows without limit while gradients are zero.

What it means
    No gradient arrives: all are exactly zero, or so small that even the scaled ones are. Nothing can overflow, so the
    scaler doubles its scale again and again, in the end to infinity, and infinity times zero is NaN.

How it is decided
    The scale passes 2^40 (a million times the usual first scale, more than any float16 gradient of a model that
    learns can bear), or is infinite, after 16 updates whose scaled gradient norm was below 1.

What to do
    Find out why nothing flows back: a detached loss, a frozen model, a mask of zeros, a saturated output. If that is
    meant, do not step the scaler there.

When it is wrong
    When a model has truly converged to zero gradients. It has then nothing left to learn either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, StepRecord

TOO_HIGH = 2.0**40
IDLE_UPDATES = 16
NOTHING = 1.0  # scaled gradient norm: the whole model's, where a scaler aims at 65504 for single elements


@rule("HC204", "loss-scale-collapse", severity="warning", reads=(), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire when an idle scale passes the mark."""
    record = window.record
    before = window.history.records[-1] if window.history.records else None
    if record is None or before is None or not _is_high(record) or _is_high(before):
        return
    idle = [*list(window.history.records)[-IDLE_UPDATES:], record]
    if len(idle) <= IDLE_UPDATES or not all(_is_idle(r) for r in idle[:-1]):
        return
    is_zero = all(r.grad_norm == 0 for r in idle[:-1])
    first = idle[0]
    yield Finding(
        code="HC204",
        kind="loss-scale-collapse",
        severity="warning",
        title="the loss scale grows without limit: no gradient arrives",
        step=window.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="dead-gradient" if is_zero else "unknown",
        confidence="likely" if is_zero else "possible",
        limit=TOO_HIGH,
        actual=record.loss_scale,
        why=(
            f"all gradients were {'exactly zero' if is_zero else 'next to zero'} in the last {IDLE_UPDATES} updates",
            f"the scale grew from {first.loss_scale:.3g} at step {first.step} to {record.loss_scale:.3g}",
        ),
    )


def _is_high(record: StepRecord) -> bool:
    return record.loss_scale is not None and not record.loss_scale < TOO_HIGH


def _is_idle(record: StepRecord) -> bool:
    if record.loss_scale is None or record.grad_norm is None or record.skipped:
        return False
    return math.isfinite(record.grad_norm) and record.grad_norm * record.loss_scale < NOTHING
