"""An operator of a dumped graph done again in float64 on the values that it was given, by NumPy's own definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hypocenter.compare.weights.checkpoint import CheckpointError, whole
from hypocenter.compare.weights.elements import values
from hypocenter.diagnose.evidence import Rerun
from hypocenter.importing.mindspore_items import Execution
from hypocenter.importing.mindspore_step import Step
from hypocenter.operator_names import canonical

_AT_MOST = 1 << 24  # elements of one operand: 128 MiB as float64


def _matmul(a: Any, b: Any, turn_a: Any = False, turn_b: Any = False) -> Any:
    left = np.swapaxes(a, -1, -2) if bool(turn_a) else a
    right = np.swapaxes(b, -1, -2) if bool(turn_b) else b
    return left @ right


_DONE: dict[str, tuple[int, Callable[..., Any]]] = {
    "mul": (2, np.multiply), "add": (2, np.add), "sub": (2, np.subtract), "div": (2, np.divide),
    "square": (1, np.square), "pow": (2, np.power), "exp": (1, np.exp), "expm1": (1, np.expm1), "log": (1, np.log),
    "log1p": (1, np.log1p), "sqrt": (1, np.sqrt), "rsqrt": (1, lambda x: 1 / np.sqrt(x)),
    "reciprocal": (1, np.reciprocal), "to": (1, lambda x: x), "neg": (1, np.negative), "abs": (1, np.abs),
    "matmul": (4, _matmul), "bmm": (4, _matmul), "maximum": (2, np.maximum), "minimum": (2, np.minimum),
}  # fmt: skip
"""By canonical name: how many inputs it takes, and what it does."""


def done_again(step: Step, run: Execution) -> Rerun:
    """The first output in float64, if NumPy has the operator and all of its inputs are known."""
    known = _DONE.get(canonical(run.op_type))
    if known is None or (run.op_type == "BiasAdd" and len(_shape(step, run)) != 2):
        return Rerun(why_not=f"{run.op_type} is not among the operators that NumPy does again")
    operands: list[Any] = []
    for item in run.inputs[: known[0]]:
        value = step.values.of(run, item)
        if value is None or value.tensor is None or value.lacks:
            return Rerun(why_not=f"input {item.name.slot} was not dumped as it was")
        if value.tensor.n > _AT_MOST:
            return Rerun(why_not=f"input {item.name.slot} is larger than {_AT_MOST:,} elements")
        try:
            bits = np.ascontiguousarray(value.tensor.read(whole(value.tensor.shape)))
        except CheckpointError as error:
            return Rerun(why_not=error.what)
        array = values(bits, value.tensor.dtype)
        operands.append(array.astype(np.float64) if array.dtype.kind in "fiu" else array)
    return _measured(known[1], operands)


def _measured(do: Callable[..., Any], operands: list[Any]) -> Rerun:
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(do(*operands))
    except (ValueError, TypeError, IndexError) as error:
        return Rerun(why_not=f"NumPy could not do it again ({type(error).__name__})")
    finite = np.isfinite(found)
    absmax = float(np.abs(found[finite]).max()) if finite.any() else 0.0
    return Rerun(ran=True, finite=bool(finite.all()), absmax=absmax, n_nonfinite=int(found.size - finite.sum()))


def _shape(step: Step, run: Execution) -> tuple[int, ...]:
    value = step.values.of(run, run.inputs[0]) if run.inputs else None
    return value.shape if value is not None else ()
