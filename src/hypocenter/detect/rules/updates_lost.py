"""Updates are rounded away.

What it means
    Weights kept in bfloat16 or float16 do not move: what the optimizer adds is less than half the distance to the
    next number of the format, and the sum is rounded back to the old weight. bfloat16 has 8 significant bits: an
    update below 1/512 of a weight is lost. The loss stays where it is although gradients are fine, and nothing
    is ever not finite.

How it is decided
    On samples of the low-precision parameters, in turn, the weights are compared before and after an update, and
    for SGD, Adam and AdamW the update is recomputed in float64. A parameter is stuck when at least 95 % of the
    elements that should have moved stayed bit for bit. At 16 measured steps in a row at least half of the
    parameters must be stuck: a warning, and an error when nine tenths are, and 99 % of all elements with them.
    Steps do not count in which the learning rate still rises, is below a tenth of its peak, or the gradient is
    below a fiftieth of what it was. Less than that, but half of all updates of 16 such steps lost, is a note, from
    four fifths on a warning; an unknown optimizer whose weights stand still for 48 measured steps is a note, for it may
    keep the weights elsewhere.

What to do
    Keep float32 master weights (model in float32 under autocast, or an optimizer that holds float32 copies), or
    round stochastically, or carry what was lost along (Kahan summation). A larger learning rate only hides it.

When it is wrong
    When standing still is intended: a layer with a learning rate of nearly 0, weights that something else
    writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypocenter.detect.engine import rule
from hypocenter.detect.update_rows import (
    PARAMS_STUCK,
    SITE,
    STUCK,
    UPDATE_LOST,
    UPDATE_ULPS,
    rows_at,
    share,
    streak,
    total,
    total_at,
)
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy, Severity

N_STEPS = 16  # measured steps in a row
N_STEPS_UNKNOWN = 48  # the same for an optimizer whose update cannot be recomputed
HALF, MOST = 0.5, 0.8
NEARLY_ALL = 0.9
DEAD = 0.99  # of all elements; below that, small weights still learn
REMEDY = Remedy(
    action="fp32-master-weights",
    text="keep the weights in float32 (train under autocast, or with an optimizer that holds float32 master weights), "
    "or round stochastically, or use Kahan summation",
)


@rule("HC221", "stagnation", severity="error", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire once, when the streak of steps with stuck parameters is long enough."""
    stuck = streak(window, PARAMS_STUCK, HALF)
    is_known = all(row.module for row in stuck)
    if len(stuck) >= N_STEPS:
        if len(stuck) == (N_STEPS if is_known else N_STEPS_UNKNOWN):
            yield _found(window, stuck, is_known=is_known)
        return
    lost = streak(window, UPDATE_LOST, 0.0)
    now, before = _level(lost[-N_STEPS:]), (_level(lost[end - N_STEPS : end]) for end in range(N_STEPS, len(lost)))
    if now > max(before, default=0.0):
        yield _partly(window, lost[-N_STEPS:], "warning" if now == MOST else "note")


def _level(lost: Sequence[Reading]) -> float:
    """Return which share of all updates of some steps is lost at least: 0, HALF or MOST."""
    if len(lost) < N_STEPS or not all(row.module for row in lost):
        return 0.0
    n, n_lost = total(lost)
    return max((level for level in (HALF, MOST) if n and n_lost >= level * n), default=0.0)


def _found(window: Window, stuck: Sequence[Reading], *, is_known: bool) -> Finding:
    n, n_stuck = total(stuck)
    worst = max((r for r in rows_at(window, UPDATE_LOST) if r.summary.n and share(r) >= STUCK), key=_size, default=None)
    name = worst.site if worst is not None else ""
    dtype, optimizer = stuck[-1].dtype, stuck[-1].module
    is_dead = n_stuck >= NEARLY_ALL * n and _lost_share(window, stuck[0].step) >= DEAD
    severity = "note" if not is_known else "error" if is_dead else "warning"
    ulps = next((r.summary.sum for r in rows_at(window, UPDATE_ULPS) if r.site == name), None) if is_known else None
    every = f"all {dtype} parameters" if n == n_stuck else f"{n_stuck / n:.0%} of the {dtype} parameters"
    return Finding(
        code="HC221",
        kind="stagnation",
        severity=severity,
        title=f"{every} {'stand still' if is_dead else 'hardly move'}: their updates are rounded away"
        if is_known
        else f"{every} stand still; the optimizer's own arithmetic is not known",
        step=stuck[0].step,
        rank=window.rank,
        phase="optimizer",
        site=name or None,
        port=UPDATE_LOST,
        param=name or None,
        cause="update-rounded-away",
        limit=0.5 if ulps is not None else None,
        actual=ulps,
        why=tuple(_why(worst, ulps, optimizer, stuck)),
        confidence="proven" if is_known else "possible",
        remedy=REMEDY,
    )


def _lost_share(window: Window, since: int) -> float:
    now = total_at(window, UPDATE_LOST)
    rows = [r for r in window.history.rows(SITE, UPDATE_LOST) if r.step >= since]
    n, n_lost = total([*rows, *([now] if now is not None else [])])
    return n_lost / n if n else 1.0


def _why(worst: Reading | None, ulps: float | None, optimizer: str, stuck: Sequence[Reading]) -> Iterator[str]:
    if worst is not None:
        n, lost = total([worst])
        yield f"{worst.site}: {lost:,} of {n:,} elements with an update did not change ({worst.dtype})"
    if ulps is not None:
        yield f"the median update is {ulps:.2g} of the distance to the next {stuck[-1].dtype}; below 0.5 it is lost"
        yield f"the update was recomputed in float64 from the state of {optimizer}"
    yield f"the same at {len(stuck)} measured steps in a row, {stuck[0].step} to {stuck[-1].step}"


def _partly(window: Window, lost: Sequence[Reading], severity: Severity) -> Finding:
    n, n_lost = total(lost)
    return Finding(
        code="HC221",
        kind="stagnation",
        severity=severity,
        title=f"{n_lost / n:.0%} of the updates of {lost[-1].dtype} weights are rounded away",
        step=lost[0].step,
        rank=window.rank,
        phase="optimizer",
        port=UPDATE_LOST,
        cause="update-rounded-away",
        limit=HALF if severity == "note" else MOST,
        actual=n_lost / n,
        why=(f"measured at {len(lost)} steps in a row, {lost[0].step} to {lost[-1].step}",),
        confidence="proven",
        remedy=REMEDY,
    )


def _size(reading: Reading) -> int:
    size = 1
    for length in reading.shape:
        size *= length
    return size
