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

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import held_in
from hypocenter.compare.fitting import fit
from hypocenter.formats import format_of

_TIMES = 16.0  # times eps: rounding of inputs, weights and outputs, and a short sum


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
        names = held_in(row.baseline), held_in(row.candidate)
    forms = format_of(names[0]), format_of(names[1])
    if forms[0] is None or forms[1] is None or forms[0].eps == forms[1].eps:
        return None
    eps = forms[0].eps, forms[1].eps
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


def _of_parameters(case: Case) -> tuple[str, str]:
    """Return the dtype of the module's own parameters on both sides; "" where they have several or none."""
    found: list[str] = []
    for module in case.modules:
        kinds = {tensor.dtype for tensor in module.parameters.values()} if module is not None else set[str]()
        found.append(kinds.pop() if len(kinds) == 1 else "")
    return found[0], found[1]
