"""An average of the weights is frozen.

What it means
    A copy of the model that follows it slowly (an EMA for evaluation, a teacher, a target network) is kept in
    bfloat16 or float16 and does not move: (1 - decay) * (weight - average) is below half the distance to the next
    number of the format. The copy stays what it was when it was made, and what is evaluated is not what was
    trained. Training itself is not harmed.

How it is decided
    Samples of the copy are followed. An element counts once an exact average of decay 0.9999 would have moved it
    by at least one number of the format, added up over the updates that the copy was given. At least 60 % of
    these elements, and these at least a quarter of the sample, must be bit for bit what they were at the start.

What to do
    Keep the average in float32 (`AveragedModel(model).float()`, or float32 shadow weights), and cast it when it is
    used.

When it is wrong
    When the copy is overwritten from a float32 average with a decay closer to 1 than 0.9999. Copies that nothing
    writes to, such as a reference policy, are not looked at. What is not seen: lists of cloned tensors, copies made
    before Hypocenter watched, and copies written only through `.data` of which not one element moves.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import EMA_LOST, SITE, rows_at, share, total_at
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

FROZEN = 0.6  # stochastic rounding leaves at most 1/e of what is owed one move where it was
ENOUGH = 0.25  # of the sample must be owed a move: the others say nothing


@rule(
    "HC222",
    "stagnation",
    severity="warning",
    reads=("optimizer",),
    asked="rows",
    not_in={
        "mindspore": "its parameters do not count their versions: a frozen copy looks like one that nobody updates"
    },
)
def check(window: Window) -> Iterator[Finding]:
    """Fire once for each kind of copy, as soon as enough of it should have moved."""
    row = total_at(window, EMA_LOST)
    if row is None or not _is_frozen(row):
        return
    if any(_is_frozen(r) and r.module == row.module for r in window.history.rows(SITE, EMA_LOST)):
        return
    worst = max((r for r in rows_at(window, EMA_LOST) if r.module == row.module), key=_n_lost, default=row)
    yield Finding(
        code="HC222",
        kind="stagnation",
        severity="warning",
        title=f"the {row.dtype} average of {row.module} does not follow the model",
        step=row.call,
        rank=window.rank,
        phase="optimizer",
        site=worst.site,
        port=EMA_LOST,
        param=worst.site,
        cause="update-rounded-away",
        limit=1.0,
        actual=1.0 - share(row),
        why=(
            f"{worst.site}: {worst.summary.sum:,.0f} of {worst.summary.n:,} elements that should have moved by a "
            f"{worst.dtype} number or more are bit for bit what they were",
            f"the copy was written after step {row.call} and later, up to step {row.step}, while the model moved away",
        ),
        confidence="likely",
        remedy=Remedy(action="fp32-average", text="keep the average in float32, and cast it when it is used"),
    )


def _n_lost(row: Reading) -> float:
    return row.summary.sum


def _is_frozen(row: Reading) -> bool:
    return share(row) >= FROZEN and row.summary.n >= ENOUGH * max(1, *row.shape)
