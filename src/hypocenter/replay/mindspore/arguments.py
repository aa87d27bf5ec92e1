"""The arguments of an operator as MindSpore's dispatch mode shows them: tensors, names, numbers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore.ops.auto_generate import gen_ops_prim  # pyright: ignore[reportMissingImports]

from hypocenter.optrace import LITERAL_NEGINF, LITERAL_POSINF
from hypocenter.replay.mindspore.host import values

_NO_ARGUMENT = ("self", "args", "kwargs")


def operands_of(args: Any) -> tuple[Any, ...]:
    """Return the arguments without what the older kind of operator has in front: the primitive and its name."""
    if len(args) == 3 and isinstance(args[0], ms.ops.Primitive) and isinstance(args[2], tuple):
        return args[2]
    return args


@functools.lru_cache(maxsize=1024)
def argument_names(op: str, n: int) -> tuple[str, ...]:
    """Return the names of the arguments in the operator's own class, such as input and other."""
    kind: Any = getattr(gen_ops_prim, op, None)
    found: list[str] = []
    if kind is not None:
        with contextlib.suppress(TypeError, ValueError, AttributeError):
            found = [name for name in inspect.signature(kind.__call__).parameters if name not in _NO_ARGUMENT]
    elif n == 2:
        found = ["input", "other"]  # Muls, Divs: variants without a class of their own
    return tuple(found[i] if i < len(found) else f"in[{i}]" for i in range(n))


def scalars_of(operands: Sequence[Any], names: Sequence[str], outside: set[int]) -> dict[str, Any]:
    """Return arguments that are numbers, also those that MindSpore made a tensor of, which nobody computed."""
    found: dict[str, Any] = {}
    for name, value in zip(names, operands, strict=True):
        if id(value) in outside:
            if (number := _number(value)) is not None:
                found[name] = number
        elif isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
            found[name] = value
        elif isinstance(value, (list, tuple)) and value and all(isinstance(v, int) for v in value):
            found[name] = list(value)
    return found


def _number(tensor: Any) -> float | None:
    if tensor.shape or isinstance(tensor, ms.Parameter):
        return None
    array = values(tensor)
    number = float(array) if array.dtype.kind in "fiu" else math.nan
    return number if math.isfinite(number) else None


def literal_bits(operands: Sequence[Any]) -> int:
    """Return the bits of infinite Python numbers among the operands."""
    bits = 0
    for value in operands:
        if isinstance(value, float) and math.isinf(value):
            bits |= LITERAL_POSINF if value > 0 else LITERAL_NEGINF
    return bits
