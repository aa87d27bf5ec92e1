"""`hypocenter.probe(x, "after layer_norm")` in MindSpore: a value inside a construct in, its Reading out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.autograd import has_gradient, in_backward, is_leaf
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.reducer import Reducer
from hypocenter.tap.mindspore.tree import flatten
from hypocenter.tap.probing import Probes

T = TypeVar("T")


def record_probe(value: T, label: str) -> T:
    """Record the tensors in `value` under `<cell>.<label>`, port `probe`, and their gradients under `grad_probe`.

    Returns `value` itself. Without an active session and outside a training micro-batch it does nothing else. What is
    compiled does not call it: a probe has no place in a graph.
    """
    if ProbeTap.active is not None:
        ProbeTap.active.record(value, label, sys._getframe(1))
    return value


class ProbeTap(Probes):
    """Collects what `record_probe` is given while active."""

    def __init__(self, names: NameMap, reducer: Reducer, clock: Clock, warn: Callable[[str], None]) -> None:
        super().__init__(reducer, clock, warn)
        self._names = names

    def tensors(self, value: object) -> Iterable[tuple[str, Any]]:
        """Yield (port, tensor) for all tensors in a value."""
        return flatten(value, "probe")

    def named(self, owner: object) -> tuple[str, str] | None:
        """Return the name and class of a cell that the user knows; None for anything else."""
        name = self._names.cell_name(owner) if isinstance(owner, nn.Cell) else None
        return None if name is None else (name, type(owner).__name__)

    def is_recompute(self) -> bool:
        """Return whether backward runs now, so that a forward is a recompute."""
        return in_backward()

    def hear_gradient(self, tensor: Any, hear: Callable[[Any], None]) -> None:
        """Have `hear` told of the tensor's gradient, if it will have one and is no leaf."""

        def told(gradient: Any) -> Any:
            hear(gradient)
            return gradient  # MindSpore refuses None

        if has_gradient(tensor) and not is_leaf(tensor):
            tensor.register_hook(told)
