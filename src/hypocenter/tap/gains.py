"""How large what operators give is, against what they read: the op trace of a micro-batch, with sizes.

The size of a tensor is its largest magnitude, in octaves: its base-2 logarithm. It is taken once, where the tensor is
made. In backward sizes are those of a loss scale of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hypocenter.tap.nodes import Node
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.op_tensors import storage_key
from hypocenter.tap.storages import UNDEFINED
from hypocenter.tap.tracer import OpTracer

Key: TypeAlias = tuple[object, ...]
"""The same operator, or the same tensor from outside, in another step: its place, and the n-th time there."""


@dataclass(slots=True, eq=False)
class Sized:
    """The sizes of what an operator gave, or of a tensor from outside."""

    key: Key
    inputs: tuple[tuple[int, int], ...]  # what was read: its producer, and which of the tensors that it gave
    n_read: int = 0  # elements of the largest tensor that it read
    n_given: int = 0  # of the largest that it gave
    octaves: list[float] = field(default_factory=list[float])  # of each tensor; -inf: all zero, or without a size
    is_scaling: bool = False  # it read one tensor, and beside it numbers only
    is_number: bool = False  # a number of the program, as a tensor from outside
    is_gradient: bool = False  # it descends from what backward started from

    @property
    def octave(self) -> float:
        """The size of the largest tensor, as a base-2 logarithm; -inf without any."""
        return max(self.octaves, default=-math.inf)


class SizeTracer(OpTracer):
    """Takes sizes as operators run. `settle` brings them to the host together, unless they are asked for at once.

    Args:
        context: where operators run.
        leaf: names tensors from outside.
        scale: loss scale in the gradients.
        judge: told of each operator when its size is known; whether its arguments are to be kept. None: sizes stay on
            the device until `settle`.
    """

    def __init__(
        self,
        context: OpContext,
        leaf: Callable[[Tensor], tuple[str, str]],
        *,
        scale: float = 1.0,
        judge: Callable[[SizeTracer, Sized, Node], bool] | None = None,
        **how: Any,
    ) -> None:
        super().__init__(context, self._sized_leaf, capture=judge is not None, **how)
        self.sized: dict[int, Sized] = {}  # by producer: an operator's index, or -1 - that of a tensor from outside
        self.held: dict[int, Tensor] = {}  # with a judge: the tensors from outside, as `sized`
        self._name_leaf, self._scale, self._judge = leaf, scale, judge
        self._sizes: list[tuple[Sized, int, Tensor, float]] = []
        self._counts: dict[Key, int] = {}
        self._places: dict[int, int] = {}  # of a storage among the tensors that its producer gave

    def restart(self) -> None:
        """Forget what was traced: the replay starts over."""
        super().restart()
        self.sized.clear()
        self.held.clear()
        self._sizes.clear()
        self._counts.clear()
        self._places.clear()

    @staticmethod
    def nth(each: Sized) -> int:
        """Return which of its runs at this place the operator made, counted from 0."""
        nth = each.key[-1]
        assert isinstance(nth, int)
        return nth

    def n_times(self, each: Sized) -> int:
        """Return how often the same operator ran at the same place."""
        return self._counts.get(each.key[:-1], -1) + 1

    def settle(self) -> None:
        """Bring all sizes to the host, in one transfer for each device."""
        for device in {size.device for *_, size, _ in self._sizes}:
            here = [each for each in self._sizes if each[2].device == device]
            numbers = torch.stack([size.float() for *_, size, _ in here]).tolist()
            for (sized, place, _, scale), number in zip(here, numbers, strict=True):
                sized.octaves[place] = octave_of(number / scale)
        self._sizes.clear()

    def is_kept(self, node: Node, read: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """Take the size of what an operator gave; return whether its arguments are to be kept, as the judge says."""
        at, op = node.place, node.traced.op
        sized = Sized(
            key=self._nth((op, at.phase, at.site, at.code, at.line, at.node)),
            inputs=tuple(
                (edge.producer, self._places.get(storage_key(tensor), 0))
                for tensor, edge in zip(read, node.traced.inputs, strict=False)
            ),
            n_read=max((tensor.numel() for tensor in read), default=0),
            n_given=max((tensor.numel() for tensor in outputs), default=0),
            is_scaling=sum(tensor.numel() > 1 for tensor in read) == 1 or len(read) == 1,
            is_gradient=node.is_gradient,
        )
        self.sized[node.traced.index] = sized
        self._places.update((storage_key(tensor), place) for place, tensor in enumerate(outputs))
        if op.split(".")[1] not in UNDEFINED:
            self._measure(sized, outputs, self._scale if node.is_gradient else 1.0)
        return self._judge is not None and self._judge(self, sized, node)

    def _sized_leaf(self, tensor: Tensor) -> tuple[str, str]:
        kind, name = self._name_leaf(tensor)
        sized = Sized(key=self._nth((kind, name, tensor.dtype)), inputs=(), n_given=tensor.numel())
        sized.is_number = not tensor.dim() and kind not in ("batch", "param", "buffer")
        self.sized[-1 - len(self.leaves)] = sized
        self._places[storage_key(tensor)] = 0
        if self._judge is not None:
            self.held[-1 - len(self.leaves)] = tensor.detach()
        self._measure(sized, [tensor], 1.0)
        return kind, name

    def _measure(self, sized: Sized, tensors: Sequence[Tensor], scale: float) -> None:
        sized.octaves = [-math.inf] * len(tensors)
        sizes = enumerate(map(size_of, tensors))
        self._sizes += [(sized, place, size, scale) for place, size in sizes if size is not None]
        if self._judge is not None:
            self.settle()

    def _nth(self, key: Key) -> Key:
        n = self._counts[key] = self._counts.get(key, -1) + 1
        return (*key, n)


def size_of(tensor: Tensor) -> Tensor | None:
    """Return the largest magnitude, on the device; None of integers, empty, sparse or one-byte tensors."""
    values = tensor.detach()
    is_number = values.is_floating_point() or values.is_complex()
    if not is_number or not values.numel() or values.dtype.itemsize < 2 or values.layout != torch.strided:
        return None
    return None if values.is_meta else torch.linalg.vector_norm(values, math.inf)


def octave_of(size: float) -> float:
    """Return the base-2 logarithm of a magnitude; -inf of 0, inf of what is not finite."""
    return math.inf if not math.isfinite(size) else math.log2(size) if size > 0 else -math.inf
