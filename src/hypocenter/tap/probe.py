"""`hypocenter.probe(x, "after layer_norm")` in torch: a value inside a forward in, its Reading out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn

from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap, class_name
from hypocenter.tap.probing import Probes
from hypocenter.tap.reducer import Reducer
from hypocenter.tap.tree import flatten

T = TypeVar("T")


def record_probe(value: T, label: str) -> T:
    """Record the tensors in `value` under `<module>.<label>`, port `probe`, and their gradients under `grad_probe`.

    Returns `value` itself. Without an active session, outside a training micro-batch, and inside torch.compile it does
    nothing else.
    """
    if torch.compiler.is_compiling() or ProbeTap.active is None:
        return value
    ProbeTap.active.record(value, label, sys._getframe(1))
    return value


class ProbeTap(Probes):
    """Collects what `record_probe` is given while active."""

    def __init__(self, names: NameMap, reducer: Reducer, clock: Clock, warn: Callable[[str], None]) -> None:
        super().__init__(reducer, clock, warn)
        self._names = names

    def tensors(self, value: object) -> Iterable[tuple[str, Tensor]]:
        """Yield (port, tensor) for all tensors in a value."""
        return flatten(value, "probe")

    def named(self, owner: object) -> tuple[str, str] | None:
        """Return the name and class of a module that the user knows; None for anything else."""
        if not isinstance(owner, nn.Module) or (name := self._names.module_name(owner)) is None:
            return None
        return name, class_name(owner)

    def is_recompute(self) -> bool:
        """Return whether backward runs now, so that a forward is a recompute."""
        return torch._C._current_graph_task_id() != -1

    def ticket(self, tensor: Tensor) -> int | None:
        """Queue a tensor for the reducer; None if nothing can be said of it."""
        with torch.no_grad():
            return self._reducer.add(tensor)

    def hear_gradient(self, tensor: Tensor, hear: Callable[[Tensor | None], None]) -> None:
        """Have `hear` told of the tensor's gradient, if it has one; of recomputes only in reentrant checkpointing."""
        if tensor.requires_grad and not tensor.is_leaf:
            hear.__torch_unserializable__ = True  # type: ignore[attr-defined]  # no warning when the user saves the tensor
            tensor.register_hook(hear)
