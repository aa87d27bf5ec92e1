"""Gradient accumulation stalls.

What it means
    The gradients of many micro-batches are added up in bfloat16 or float16. Once the sum is large, adding the next
    one changes nothing: 256 + 1 is 256 in bfloat16. The gradient is too small, as if later micro-batches had not
    been seen, and more so the more of them there are.

How it is decided
    For one parameter a step, in turn, the same additions are done again in float64 beside it. The accumulated
    gradient, projected on the exact sum, must be below 0.9, with a tenth of all additions without effect; at two
    measured steps in a row. Only steps of a program that accumulates eight micro-batches or more are measured.

What to do
    Accumulate into a float32 main gradient, or keep parameters in float32 under autocast.

When it is wrong
    When the program scales or replaces gradients between micro-batches in a way that leaves the sampled elements as
    they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import ACCUMULATED, ADDITION_LOST, SITE, rows_at, share, total_at
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

TOO_SMALL = 0.9
LOST = 0.1
N_STEPS = 2


@rule("HC224", "stagnation", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second of two measured steps in a row that stalled, once."""
    ratio, lost = total_at(window, ACCUMULATED), total_at(window, ADDITION_LOST)
    if ratio is None or lost is None:
        return
    stalled: list[Reading] = []
    for each in ((ratio, lost), *reversed(_past(window))):
        if not _has_stalled(*each):
            break
        stalled.append(each[0])
    if len(stalled) != N_STEPS:
        return
    name = next((r.site for r in rows_at(window, ACCUMULATED)), None)
    first, value = stalled[-1], ratio.summary.sum
    yield Finding(
        code="HC224",
        kind="stagnation",
        severity="warning",
        title=f"gradients accumulated in {ratio.dtype} come out at {value:.2g} of their sum",
        step=first.step,
        rank=window.rank,
        phase="grad",
        site=name,
        port="grad",
        param=name,
        cause="update-rounded-away",
        limit=1.0,
        actual=value,
        why=(
            f"{ratio.call} micro-batches were added up in {ratio.dtype}: the result is {value:.2g} times their sum in "
            "float64",
            f"{share(lost):.0%} of the additions changed nothing",
            f"the same at steps {first.step} to {window.step}",
        ),
        confidence="proven",
        remedy=Remedy(action="fp32-main-grad", text="accumulate into a float32 main gradient"),
    )


def _past(window: Window) -> list[tuple[Reading, Reading]]:
    lost = {r.step: r for r in window.history.rows(SITE, ADDITION_LOST)}
    return [(r, lost[r.step]) for r in window.history.rows(SITE, ACCUMULATED) if r.step in lost]


def _has_stalled(ratio: Reading, lost: Reading) -> bool:
    return ratio.summary.sum < TOO_SMALL and share(lost) >= LOST
