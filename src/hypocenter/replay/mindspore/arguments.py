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
from hypocenter.replay.mindspore.host import flat, is_floating, values

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


class GradientOf:
    """Compute one gradient of an operator that ran: called with the gradient at its result and with its tensors.

    Attributes:
        tensors: that it ran with.
    """

    def __init__(self, op: str, args: Any, *, position: int) -> None:
        self._op, self._args, self._position = op, args, position
        self.tensors = list(flat(operands_of(args)))

    def names(self, of_arguments: Sequence[str]) -> tuple[str, ...]:
        """Return a name for each tensor."""
        operands = operands_of(self._args)
        return tuple(name for name, value in zip(of_arguments, operands, strict=False) for _ in flat(value))

    def __call__(self, seed: Any, *tensors: Any) -> Any:
        """Compute the gradient."""

        def forward(*given: Any) -> Any:
            left = list(given)
            return next(t for t in flat(self._run(_with(self._args, left))) if is_floating(t))

        gradient: Any = ms.ops.GradOperation(get_all=True, sens_param=True)
        return gradient(forward)(*tensors, seed)[self._position]

    def _run(self, args: Any) -> Any:
        """Run the operator by its class: what the dispatch mode gave us computes no gradient once it is over."""
        if operands_of(args) is not args:  # what follows the tensors are the primitive's own attributes
            return args[0](*args[2][: _n_parameters(type(args[0]))])
        kind: Any = getattr(gen_ops_prim, self._op, None)
        if kind is None or _n_parameters(kind) != len(args):
            raise NotImplementedError(f"the gradient of {self._op} cannot be computed alone")
        return kind()(*args)


def _n_parameters(kind: Any) -> int | None:
    """Return the number of parameters in a call of a primitive; None for any number."""
    parameters = [p for p in inspect.signature(kind.__call__).parameters.values() if p.name != "self"]
    return None if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters) else len(parameters)


def _with(value: Any, left: list[Any]) -> Any:
    """Return the same arguments with other tensors, taken from the front of `left`."""
    if isinstance(value, ms.Tensor):
        return left.pop(0)
    if isinstance(value, (list, tuple)):
        return type(value)(_with(item, left) for item in value)
    return value
