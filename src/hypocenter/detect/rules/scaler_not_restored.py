"""The loss scaler starts anew although the optimizer goes on from a checkpoint.

What it means
    The optimizer's state was loaded, the scaler's was not: `scaler.load_state_dict` is missing. The scale is back at
    its first value and has to be found again, by skipping updates when that is too high, or with gradients that
    underflow for thousands of steps when it is too low.

How it is decided
    At its first step the optimizer has updates behind it that this process has not seen, and the scaler is as it was
    made: first scale, no growth counted, `load_state_dict` not called. A warning when at least three of the next 16
    updates are skipped. Otherwise a note, and only if the scaler's construction was seen.

What to do
    Save `scaler.state_dict()` with the checkpoint and load it before the first step.

When it is wrong
    When the checkpoint comes from training without a loss scaler.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import FRESH, row_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

WATCHED = 16  # updates after the first; a scale of 2^24 needs 9 skips to come down to a usual one
MANY = 3  # skipped updates that do not happen by chance right after a good resume


@rule("HC215", "config", severity="warning", reads=("scaler",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the third skip after the resume, or when the time for it has passed."""
    row = row_of(window.readings, FRESH) or next(iter(window.history.rows(FRESH, "value")), None)
    if row is None or window.record is None:
        return
    records = [r for r in (*window.history.records, window.record) if r.step >= row.step][: WATCHED + 1]
    if records[-1] is not window.record:
        return  # the time is over
    skipped = [r.step for r in records if r.skipped]
    is_third = len(skipped) == MANY and window.record.skipped
    is_over = len(records) == WATCHED + 1 and len(skipped) < MANY
    if is_third or (is_over and row.module == "constructed"):
        yield _finding(window, row, skipped)


def _finding(window: Window, row: Reading, skipped: list[int]) -> Finding:
    many = len(skipped) >= MANY
    listed = ", ".join(map(str, skipped))
    scale = next(
        (r.loss_scale for r in (*window.history.records, window.record) if r is not None and r.step == row.step), None
    )
    behind = f"{row.summary.sum:,.0f} updates" if row.summary.sum > 2 else "updates"
    return Finding(
        code="HC215",
        kind="config",
        severity="warning" if many else "note",
        title="the loss scaler starts anew although the optimizer goes on from a checkpoint",
        step=row.step,
        rank=window.rank,
        phase="scaler",
        site="loss_scale",
        port="value",
        cause="config-mismatch",
        confidence="likely",
        actual=scale,
        why=(
            f"the optimizer has {behind} behind it, the scaler none: its scale is the first one"
            + (f", {scale:,.0f}" if scale else ""),
            f"skipped since: steps {listed}" if skipped else f"none of the {WATCHED} updates since was skipped",
        ),
        remedy=Remedy(action="load-scaler", text="save and load scaler.state_dict() with the checkpoint"),
    )
