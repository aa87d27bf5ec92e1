"""Programs that reduce `p.grad` themselves: gradients at the first all-reduce of one, or of a flat copy of all."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from hypocenter.tap.before_reduction import Local, Tell
from hypocenter.tap.collectives import Call, Listener
from hypocenter.tap.names import NameMap
from hypocenter.tap.weakly import Ref

_ADDS = frozenset({"sum", "avg", "premul_sum"})


class ByHand(Listener):
    """Listens to collectives that add up; `is_armed` from a backward on until something has been seen."""

    def __init__(self, names: NameMap, tell: Tell) -> None:
        self._names, self._tell = names, tell
        self._generation = -1
        self._by_size: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self.is_armed = False

    def before(self, call: Call) -> None:
        """Tell of the local gradients if it is gradients that are about to be added up."""
        is_reduction = call.reduce in _ADDS and len(call.ranks) > 1 and not call.is_functional
        if not self.is_armed or not is_reduction or torch.compiler.is_compiling():
            return
        self._look_up()
        if torch._C._current_graph_task_id() != -1:  # from a hook, one by one, while others are still computed
            found = [local for tensor in call.inputs for local in self._of(tensor)]
            if found:
                self._tell(found)
        elif any(self._is_of_gradients(tensor) for tensor in call.inputs):
            self.is_armed = False
            self._tell(list(self._all()))

    def _look_up(self) -> None:
        if self._generation == self._names.generation and self._by_size:
            return
        self._by_size.clear()
        for _, parameter in self._names.parameters():
            if parameter.requires_grad:
                self._by_size.setdefault(parameter.numel(), []).append(Ref(parameter))
        self._generation = self._names.generation

    def _is_of_gradients(self, tensor: torch.Tensor) -> bool:
        if any(True for _ in self._of(tensor)):
            return True
        n = tensor.numel()
        return n > 1 and n == sum(local.gradient.numel() for local in self._all())

    def _of(self, tensor: torch.Tensor) -> Iterable[Local]:
        """Yield the parameter whose gradient this tensor is."""
        address = tensor.data_ptr()
        for ref in self._by_size.get(tensor.numel(), ()):
            parameter = ref()
            gradient = parameter.grad if parameter is not None else None
            if (
                parameter is not None
                and gradient is not None
                and _is_plain(gradient)
                and gradient.data_ptr() == address
            ):
                yield Local(parameter, gradient)

    def _all(self) -> Iterable[Local]:
        for refs in self._by_size.values():
            for ref in refs:
                parameter = ref()
                if parameter is not None and parameter.grad is not None and _is_plain(parameter.grad):
                    yield Local(parameter, parameter.grad)


def _is_plain(gradient: torch.Tensor) -> bool:
    return type(gradient) is torch.Tensor and gradient.layout == torch.strided and gradient.numel() > 0
