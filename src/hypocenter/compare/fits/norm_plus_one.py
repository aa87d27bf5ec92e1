"""A norm multiplies by 1 + weight on one side and by weight on the other.

What it means
    Gemma and Megatron's zero-centered gamma store the weight less 1. Code and checkpoint of different kinds are apart
    by the normalised input itself.

How it is decided
    The weight agrees, and what the norm gives differs by a tensor whose elements have a mean square of 1 (of the
    normalised input), while the outputs' own squares are those that weight and 1 + weight make. Or: the weights differ
    by exactly 1 in every element from the start.

What to do
    Add or take off 1 when converting; set zero_centered_gamma or its like to the same on both sides.

When it is wrong
    When the norm's weight is nearly 1 everywhere the outputs are also nearly twice the baseline's: both are named.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case, PairedRow, Values
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import is_at_start, parameter_row, squared_difference
from hypocenter.compare.fitting import fit

_NEAR = 0.2  # relative: rows are not all normalised alike when inputs are small, and biases add a little
_EXACT = 2.0**-7  # relative, of sums of what was stored in bfloat16


@fit("norm-plus-one")
def norm_plus_one(case: Case) -> Fit | None:
    """A weight against the weight and 1."""
    row = case.row
    if row is None or not _is_norm(case, row):
        return None
    if is_at_start(case):
        sign = _constant(row)
        words = "with 1 added" if sign > 0 else "with 1 taken off"
        return _answer(sign, f"{case.first.site} is {words} in the candidate") if sign else None
    if case.first.phase != "forward" or not case.inputs_agree:
        return None
    weight = parameter_row(case, f"{case.first.site}.weight")
    if weight is None or not weight.agrees:
        return None
    sign = _normalised(case, row, weight.baseline)
    side = "candidate" if sign > 0 else "baseline"
    return _answer(sign, f"{case.first.site} adds 1 to its weight in the {side}") if sign else None


def _is_norm(case: Case, row: PairedRow) -> bool:
    card = case.card(row, side=0)
    kinds = [card.module if card is not None else "", *(one.kind for one in case.modules if one is not None)]
    return any(word in f"{case.first.site} {' '.join(kinds)}".lower() for word in ("norm", ".ln"))


def _constant(row: PairedRow) -> int:
    """Return 1 (or -1) when every element of the candidate is the baseline's plus (or minus) 1; else 0."""
    a, b = row.baseline, row.candidate
    for sign in (1, -1):
        near = _EXACT * max(a.absmax, b.absmax, 1.0)
        ends = abs(b.min - a.min - sign) <= near and abs(b.max - a.max - sign) <= near
        squares = a.sumsq + 2 * sign * a.sum + a.n
        if ends and abs(b.sum - a.sum - sign * a.n) <= near * a.n and math.isclose(b.sumsq, squares, rel_tol=_NEAR / 4):
            return sign
    return 0


def _normalised(case: Case, row: PairedRow, weight: Values) -> int:
    """Return 1 when the candidate adds 1, -1 when the baseline does, 0 when neither explains the outputs."""
    n_rows = row.baseline.n / weight.n if weight.n else 0.0
    _, low, high = squared_difference(row)
    if not low * (1 - _NEAR) <= row.baseline.n <= high * (1 + _NEAR):
        return 0
    bias = parameter_row(case, f"{case.first.site}.bias")
    added = n_rows * bias.baseline.sumsq if bias is not None else 0.0
    plain = n_rows * weight.sumsq + added
    more = n_rows * (weight.sumsq + 2 * weight.sum + weight.n) + added
    for sign, (mine, other) in ((1, (plain, more)), (-1, (more, plain))):
        if math.isclose(row.baseline.sumsq, mine, rel_tol=_NEAR) and math.isclose(
            row.candidate.sumsq, other, rel_tol=_NEAR
        ):
            return sign
    return 0


def _answer(sign: int, text: str) -> Fit:
    return Fit(
        name="norm-plus-one", cause="config-mismatch", explained=1.0, confidence="likely", text=text,
        values={"sign": sign}, fix="use weights and code of the same kind: both with weight, or both with 1 + weight",
    )  # fmt: skip
