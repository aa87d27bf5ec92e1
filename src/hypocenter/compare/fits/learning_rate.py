"""The learning rate follows another curve.

What it means
    Another peak, another warm-up, or a scheduler that is called a step earlier or later.

How it is decided
    The learning rate of an update is the first number that differs. When the candidate's rates are the baseline's one
    step before or after, the schedule is shifted; when all are apart by one factor, the peak is another.

What to do
    Compare learning rate, warm-up and decay; look where scheduler.step() is called.

When it is wrong
    It is a fact: the rates were recorded.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

_SAME = 1e-6  # relative: a rate through float32


@fit("learning-rate")
def learning_rate(case: Case) -> Fit | None:
    """Another rate, and how the curves lie."""
    row = case.row
    if row is None or row.spot.phase != "optimizer" or not (row.spot.site == "lr" or row.spot.site.startswith("lr.")):
        return None
    mine, other = row.baseline.sum, row.candidate.sum
    rates = [(one.baseline.sum, one.candidate.sum) for one in case.series(row.pair)]
    text = f"the learning rate of step {case.first.step} is {mine:g} in the baseline and {other:g} in the candidate"
    return Fit(
        name="learning-rate", cause="config-mismatch", explained=1.0, confidence="proven",
        text=f"{text}{_how(rates)}", values={"baseline": mine, "candidate": other},
        fix="use the same learning rate, warm-up and place of scheduler.step()",
    )  # fmt: skip


def _how(rates: list[tuple[float, float]]) -> str:
    mine, other = [a for a, _ in rates], [b for _, b in rates]
    if len(rates) > 2 and len(set(mine)) > 2:
        if _same(mine[1:], other[:-1]):
            return ": the schedule runs a step ahead"
        if _same(mine[:-1], other[1:]):
            return ": the schedule lags a step behind"
    factors = {round(b / a, 6) for a, b in rates if a}
    return f": every step's is {factors.pop():g} times the baseline's" if len(factors) == 1 and len(rates) > 1 else ""


def _same(left: list[float], right: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(left, right, strict=True))
