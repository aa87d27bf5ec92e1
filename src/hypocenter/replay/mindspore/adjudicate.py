"""Adjudicate by doing it again: an operator of MindSpore in float64 and on the same device."""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore._c_expression import typing  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.diagnose.evidence import Rerun
from hypocenter.diagnose.operators import CAST, RANDOM
from hypocenter.operator_names import canonical
from hypocenter.replay.host_values import compared, same_values
from hypocenter.replay.mindspore.host import FLOATS, flat, is_floating, values
from hypocenter.replay.node import Node
from hypocenter.replay.repeated import repeated

_DTYPES = ("dtype",)  # argument names that hold a format


def rerun_float64(node: Node) -> Rerun:
    """Do the op again in float64: if that is finite the format was too small, and the mathematics is not singular."""
    original = node.bad_output
    if node.func is None or node.args is None or original is None:
        return Rerun(why_not=_not_kept(node))
    try:
        if canonical(node.traced.op) in CAST:
            result = values(next(flat(node.args))).astype(np.float64)
        else:
            result = _first(node.func(*_widened(node.args, node.names)))
    except NotImplementedError as error:
        return Rerun(why_not=_line(error))
    except Exception as error:  # a kernel that knows no float64
        return Rerun(why_not=f"it cannot run in float64: {_line(error)}")
    return compared(result, original.array)


def rerun_same(node: Node) -> Rerun:
    """Do the op again on the same device: other bits mean hardware or a race."""
    original = node.bad_output
    if node.func is None or node.args is None or original is None:
        return Rerun(why_not=_not_kept(node))
    if canonical(node.traced.op) in RANDOM:
        return Rerun(why_not="it draws random numbers")
    func, args = node.func, node.args
    try:
        result = _first(func(*args))
        found = compared(result, original.array)
        if result is None or not found.ran or found.equal_bits:
            return found
        return repeated(found, lambda: _first(func(*args)), same_values, result, original.array)
    except Exception as error:
        return Rerun(why_not=_line(error))


def _not_kept(node: Node) -> str:
    if node.func is None and node.outputs:
        return "MindSpore does not show this operator: it cannot be executed alone"
    return "its inputs were not kept (too large)"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _first(result: Any) -> NDArray[Any] | None:
    return next((values(t) for t in flat(result) if is_floating(t)), None)


def _widened(value: Any, names: tuple[str, ...] = ()) -> Any:
    """Widen floating tensors and requested floating formats to float64."""
    if isinstance(value, ms.Tensor):
        return ms.Tensor(values(value).astype(np.float64)) if value.dtype in FLOATS else value
    if isinstance(value, (list, tuple)):
        wide = [_widened(item) for item in value]
        for i, name in enumerate(names[: len(wide)]):
            if name in _DTYPES and isinstance(wide[i], int):
                wide[i] = typing.type_to_type_id(ms.float64)
        return type(value)(wide)
    return value


def operands(node: Node) -> tuple[Any, ...]:
    """Return the captured arguments, without what the older kind of operator has in front."""
    args: Any = node.args or ()
    is_old = len(args) == 3 and isinstance(args[0], ms.ops.Primitive) and isinstance(args[2], tuple)
    return args[2] if is_old else tuple(args)
