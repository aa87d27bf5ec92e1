"""One gradient of an operator, computed again through the operator: for those that the dispatch mode does not show."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore.ops.auto_generate import gen_ops_prim  # pyright: ignore[reportMissingImports]

from hypocenter.replay.mindspore.arguments import operands_of
from hypocenter.replay.mindspore.host import flat, is_floating


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
