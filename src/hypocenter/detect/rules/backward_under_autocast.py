"""Backward runs inside autocast.

What it means
    `loss.backward()` is called inside `with torch.autocast(...)`. Most of backward runs in the types that forward
    used, and nothing changes. But where forward was kept in float32 on purpose (a block with autocast switched off,
    a custom function), backward is not: its matrix products run in half precision, with half precision's rounding
    and range. Torch advises against it.

How it is decided
    Autocast was on when backward was called: a note. The last micro-batch of up to three such steps is replayed with
    backward inside autocast and outside: it is a warning when a gradient is not finite inside only, or differs by
    more than 1 %.

What to do
    End the `with` block after the loss is computed.

When it is wrong
    It is a fact; what it changes is measured on three micro-batches only.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.misuse import BACKWARD, BACKWARD_ERROR, past, row_of
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

PATIENCE = 3  # steps after which it is said unmeasured: no replay, or gradients that are not finite anyway
HARMFUL = 0.01  # relative; rounding to half precision alone gives up to 0.004 (bfloat16) in one product


@rule(
    "HC216",
    "config",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={
        "mindspore": "MindSpore has no autocast block: the precision belongs to a cell, in forward and backward alike"
    },
)
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first backward inside autocast, and at the first that it does harm to."""
    row = row_of(window.readings, BACKWARD)
    if row is None:
        return
    measured = row_of(window.readings, BACKWARD_ERROR)
    is_broken = measured is not None and measured.summary.n_nonfinite > 0
    error = measured.summary.sum if measured is not None and not is_broken else None
    harms = is_broken or (error is not None and _harms(error))
    errors = [e for _, e in past(window, BACKWARD_ERROR)]
    n_unmeasured = len(list(past(window, BACKWARD))) - len(errors)
    if any(_harms(e) for e in errors) or (errors and not harms):
        return  # said before
    if measured is None and n_unmeasured != PATIENCE - 1:
        return  # it may be measured at the next step
    yield Finding(
        code="HC216",
        kind="config",
        severity="warning" if harms else "note",
        title="backward runs inside autocast",
        step=window.step,
        rank=window.rank,
        phase="backward",
        site=measured.module if measured is not None and harms else None,
        param=measured.module if measured is not None and harms else None,
        cause="config-mismatch",
        confidence="proven" if measured is not None else "likely",
        actual=error,
        limit=HARMFUL if error is not None else None,
        why=(_why(row, measured, error),),
        remedy=Remedy(action="backward-outside", text="call backward after the autocast block"),
    )


def _harms(error: float) -> bool:
    return not error <= HARMFUL  # NaN: not finite


def _why(row: Reading, measured: Reading | None, error: float | None) -> str:
    where = f"autocast to {row.module} is on when backward is called"
    if measured is None:
        return f"{where}; what it changes could not be measured"
    if error is None:
        return f"{where}: replayed, the gradient of {measured.module} is not finite, and it is with backward outside"
    if error == 0.0:
        return f"{where}: replayed with backward outside, every gradient is the same"
    return f"{where}: replayed, the gradient of {measured.module} differs by {100 * error:.2g} % from backward outside"
