"""Optimizer state is frozen by rounding.

What it means
    The optimizer counts and averages in a format that cannot hold the next value. bfloat16 has no 257: a step
    counter stays at 256 (float16: 2048), the bias correction of Adam stops there, and updates are about half as
    large as they should be. A second moment in bfloat16 with beta2 = 0.999 can grow but never shrink: a thousandth
    of it is below half the distance to the next number.

How it is decided
    Counter: its value is the first whose successor the format does not have, and at two measured steps in a row an
    update left it as it was. Second moment: at least 95 % of its elements stayed bit for bit, and its mean is off by
    a factor of 4 from what the gradients give in exact arithmetic (updates are half or twice as large), for at
    least half of the parameters, at 16 measured steps in a row.

What to do
    Keep the optimizer's state, at least `step`, in float32: do not cast the whole state dict; `load_state_dict`
    leaves `step` as it is. For second moments: float32 parameters under autocast, or a smaller beta2.

When it is wrong
    For the counter never. For the second moment when gradients jump from step to step by orders of magnitude: it
    is known from samples only.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import (
    MOMENT_RATIO,
    MOMENTS_WRONG,
    STEP_COUNTER,
    STEP_MOVED,
    rows_at,
    streak,
)
from hypocenter.detect.window import Window
from hypocenter.formats import format_of
from hypocenter.nouns import Finding, Reading, Remedy

N_STUCK = 2  # updates in a row that leave the counter as it is
N_STEPS = 16
HALF = 0.5


@rule("HC223", "stagnation", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once for the counter, and once for second moments."""
    for row in rows_at(window, STEP_COUNTER):
        yield from _counter(window, row)
    wrong = streak(window, MOMENTS_WRONG, HALF)
    if len(wrong) == N_STEPS:
        yield _moments(window, wrong[0])


def _counter(window: Window, row: Reading) -> Iterator[Finding]:
    form = format_of(row.dtype)
    last = 2**63 if form is None else form.whole_up_to  # from here on the format has even numbers only
    moves = [r for r in rows_at(window, STEP_MOVED) if r.site == row.site]
    moves += reversed(window.history.rows(row.site, STEP_MOVED))
    n_stuck = next((i for i, r in enumerate(moves) if r.summary.sum != 0), len(moves))
    if row.summary.sum < last or n_stuck != N_STUCK:
        return
    first = moves[n_stuck - 1].step
    yield Finding(
        code="HC223",
        kind="stagnation",
        severity="warning",
        title=f"the optimizer's step counter is stuck at {row.summary.sum:.0f}: it is {row.dtype}",
        step=first,
        rank=window.rank,
        phase="optimizer",
        site=row.site,
        port="step",
        param=row.site,
        cause="update-rounded-away",
        limit=float(last),
        actual=row.summary.sum,
        why=(
            f"{row.summary.sum:.0f} + 1 is {row.summary.sum:.0f} in {row.dtype}",
            f"the updates of steps {first} to {row.step} did not change it",
            "Adam corrects its averages by 1 - beta^step, which no longer changes: updates are too small from here on",
        ),
        confidence="proven",
        remedy=Remedy(action="fp32-state", targets=("step",), text="keep the optimizer's `step` in float32"),
    )


def _moments(window: Window, first: Reading) -> Finding:
    rows = rows_at(window, MOMENT_RATIO)
    worst = max(rows, key=lambda r: max(r.summary.sum, 1 / r.summary.sum) if r.summary.sum > 0 else 0.0, default=None)
    ratio = worst.summary.sum if worst is not None else 0.0
    return Finding(
        code="HC223",
        kind="stagnation",
        severity="warning",
        title=f"the second moments of Adam are frozen: they are {first.dtype}",
        step=first.step,
        rank=window.rank,
        phase="optimizer",
        site=worst.site if worst is not None else None,
        port="exp_avg_sq",
        param=worst.site if worst is not None else None,
        cause="update-rounded-away",
        limit=1.0,
        actual=ratio,
        why=(f"exp_avg_sq is {ratio:.2g} times what its gradients give in exact arithmetic",),
        confidence="likely",
        remedy=Remedy(
            action="fp32-state", targets=("exp_avg_sq",), text="keep the optimizer's state in float32, or lower beta2"
        ),
    )
