"""A module computes in a shorter format on one side.

What it means
    One side computes, or keeps its parameters, in bfloat16 or float16 and the other in a longer format.

How it is decided
    The dtype of the first output that differs, or of its module's parameters, is another one; or the least and the
    largest value of one side only have no more digits than a short format has, and more than 0, 1 or 0.5 have. And
    the error is of the size that the shorter format makes.

What to do
    Give the module the same dtype and the same autocast on both sides.

When it is wrong
    When a second difference of the same size is in the same module.
"""

from __future__ import annotations

import numpy as np

from hypocenter.compare.case import Case, Values
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

# eps of the formats that programs compute in: distance from 1 to the next number
_EPS = {
    "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}  # fmt: skip
_TIMES = 16.0  # times eps: rounding of inputs, weights and outputs, and a short sum
_BEYOND_ROUND = 0x1FFFFF  # bits of a float32's mantissa below the first two


@fit("precision-of-one-module")
def precision_of_one_module(case: Case) -> Fit | None:
    """Another dtype on one side, and an error of its size."""
    row = case.row
    if row is None or row.comparison.distance is None or not case.inputs_agree:
        return None
    names = row.baseline.dtype, row.candidate.dtype
    if names[0] == names[1]:
        names = _of_parameters(case)
    if names[0] == names[1] or not all(names):
        names = _held(row.baseline), _held(row.candidate)
    eps = _EPS.get(names[0], 0.0), _EPS.get(names[1], 0.0)
    if not all(eps) or eps[0] == eps[1]:
        return None
    coarse, error = max(eps), row.comparison.distance.relative
    if not coarse / _TIMES / 4 <= error <= coarse * _TIMES:
        return None
    side = "candidate" if eps[1] > eps[0] else "baseline"
    where = case.first.site or "the model itself"
    return Fit(
        name="precision-of-one-module", cause="precision-mismatch", explained=1.0, confidence="likely",
        text=f"{where} is {names[0]} in the baseline and {names[1]} in the candidate",
        values={"baseline": names[0], "candidate": names[1], "coarser": side},
        fix=f"compute {where} in one format on both sides",
    )  # fmt: skip


def _held(values: Values) -> str:
    """The shortest format that holds the extremes exactly: what was computed in it and cast back shows that."""
    extremes = np.array([values.min, values.max], np.float32)
    if values.n < 2 or not np.isfinite(extremes).all():
        return values.dtype
    if not (extremes.view(np.uint32) & _BEYOND_ROUND).any():
        return values.dtype  # zeros, ones and halves are exact in every format, and tell none
    if not (extremes.view(np.uint32) & 0xFFFF).any():  # the lower 16 bits of a float32 are what bfloat16 leaves out
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if (extremes.astype(np.float16) == extremes).all() else values.dtype


def _of_parameters(case: Case) -> tuple[str, str]:
    """Formats of the module's own parameters."""
    found: list[str] = []
    for module in case.modules:
        kinds = {tensor.dtype for tensor in module.parameters.values()} if module is not None else set[str]()
        found.append(kinds.pop() if len(kinds) == 1 else "")
    return found[0], found[1]
