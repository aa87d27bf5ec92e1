"""Gradients are clipped to another norm, or on one side only.

What it means
    All gradients differ by one factor after clipping, while their norm before it agrees.

How it is decided
    All gradients differ by one factor; the norm that was recorded before clipping agrees, or the gradients of backward
    do. The norm after clipping says to which number each side clips.

What to do
    Set the same maximal norm. With several ranks or groups, compare over what the norm is taken.

When it is wrong
    A scaler that divides on one side only makes a factor as well; then the norm before clipping differs too.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case, PairedRow
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

_CLOSE = 4e-3  # relative: gradients in bfloat16


@fit("clipping")
def clipping(case: Case) -> Fit | None:
    """One factor in all gradients, of the norms after clipping."""
    if case.first.phase != "grad" or not case.inputs_agree:
        return None
    rows = [row for row in case.rows(phase="grad", port="grad") if row.baseline.sumsq and row.candidate.sumsq]
    if len(rows) < 2:
        return None
    norms = math.sqrt(sum(r.baseline.sumsq for r in rows)), math.sqrt(sum(r.candidate.sumsq for r in rows))
    factor = norms[1] / norms[0]
    if abs(factor - 1.0) < _CLOSE or not all(_shares(row, factor) for row in rows):
        return None
    before = [row for row in case.rows(phase="grad", site="grad_norm") if row.baseline.n == 1]
    backward = [row for row in case.rows(phase="backward") if row.comparison.verdict == "differs"]
    if backward or (before and not all(row.agrees for row in before)):
        return None
    return Fit(
        name="clipping", cause="config-mismatch", explained=1.0, confidence="likely",
        text=f"the norm of all gradients is {norms[0]:.4g} in the baseline and {norms[1]:.4g} in the candidate after "
        "clipping, and they agree before it", values={"baseline": norms[0], "candidate": norms[1]},
        fix="clip to the same norm on both sides",
    )  # fmt: skip


def _shares(row: PairedRow, factor: float) -> bool:
    return math.isclose(row.candidate.norm / row.baseline.norm, factor, rel_tol=4 * _CLOSE)
