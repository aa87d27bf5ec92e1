"""How large what operators give is, against what they read: the op trace of a micro-batch, with sizes.

The size of a tensor is its largest magnitude, in octaves: its base-2 logarithm. It is taken once, where the tensor is
made. In backward sizes are those of a loss scale of 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hypocenter.tap.nodes import Node
from hypocenter.tap.op_context import OpContext, OpPlace
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


class Sizes:
    """The sizes of what operators give, as they run. They stay on their devices until `settle`.

    Args:
        scale: loss scale in the gradients.

    Attributes:
        sized: by producer: an operator's index, or -1 - that of a tensor from outside.
    """

    def __init__(self, scale: float) -> None:
        self.sized: dict[int, Sized] = {}
        self._scale = scale
        self._waiting: list[tuple[Sized, int, Tensor, float]] = []
        self._counts: dict[Key, int] = {}
        self._places: dict[int, int] = {}  # of a storage among the tensors that its producer gave

    def clear(self) -> None:
        """Forget all."""
        for each in (self.sized, self._waiting, self._counts, self._places):
            each.clear()

    def n_times(self, each: Sized) -> int:
        """Return how often the same operator ran at the same place."""
        return self._counts.get(each.key[:-1], -1) + 1

    def add(
        self,
        index: int,
        op: str,
        at: OpPlace,
        read: Sequence[Tensor],
        producers: Iterable[int],
        outputs: Sequence[Tensor],
        *,
        is_gradient: bool,
    ) -> Sized:
        """Note what an operator has given.

        Args:
            producers: of what it read.
            is_gradient: see Sized.
        """
        counts = [tensor.numel() for tensor in read]
        sized = Sized(
            key=self._nth((op, at.phase, at.site, at.code, at.line, at.node)),
            inputs=tuple(
                (producer, self._places.get(storage_key(tensor), 0))
                for tensor, producer in zip(read, producers, strict=False)
            ),
            n_read=max(counts, default=0),
            n_given=max((tensor.numel() for tensor in outputs), default=0),
            is_scaling=len(counts) == 1 or sum(n > 1 for n in counts) == 1,
            is_gradient=is_gradient,
        )
        self.sized[index] = sized
        for place, tensor in enumerate(outputs):
            self._places[storage_key(tensor)] = place
        if op.split(".")[1] not in UNDEFINED:
            self._measure(sized, outputs, self._scale if is_gradient else 1.0)
        return sized

    def add_leaf(self, producer: int, kind: str, name: str, tensor: Tensor) -> None:
        """Note a tensor from outside."""
        sized = Sized(key=self._nth((kind, name, tensor.dtype)), inputs=(), n_given=tensor.numel())
        sized.is_number = not tensor.dim() and kind not in ("batch", "param", "buffer")
        self.sized[producer] = sized
        self._places[storage_key(tensor)] = 0
        self._measure(sized, [tensor], 1.0)

    def settle(self) -> None:
        """Bring all sizes to the host, in one transfer for each device."""
        for device in {size.device for *_, size, _ in self._waiting}:
            here = [each for each in self._waiting if each[2].device == device]
            numbers = torch.stack([size.float() for *_, size, _ in here]).tolist()
            for (sized, place, _, scale), number in zip(here, numbers, strict=True):
                sized.octaves[place] = octave_of(number / scale)
        self._waiting.clear()

    def _measure(self, sized: Sized, tensors: Sequence[Tensor], scale: float) -> None:
        sized.octaves = [-math.inf] * len(tensors)
        for place, tensor in enumerate(tensors):
            if (size := size_of(tensor)) is not None:
                self._waiting.append((sized, place, size, scale))

    def _nth(self, key: Key) -> Key:
        n = self._counts[key] = self._counts.get(key, -1) + 1
        return (*key, n)


class SizeTracer(OpTracer):
    """Takes sizes of a step that jumped, and judges each operator when its size is known.

    Args:
        context: where operators run.
        leaf: names tensors from outside.
        scale: loss scale in the gradients.
        judge: told of each operator; whether its arguments are to be kept.
    """

    def __init__(
        self,
        context: OpContext,
        leaf: Callable[[Tensor], tuple[str, str]],
        *,
        scale: float,
        judge: Callable[[SizeTracer, Sized, Node], bool],
        **how: Any,
    ) -> None:
        super().__init__(context, self._sized_leaf, **how)
        self.held: dict[int, Tensor] = {}  # the tensors from outside, as `sized`
        self.sizes = Sizes(scale)
        self._name_leaf, self._judge = leaf, judge

    @property
    def sized(self) -> dict[int, Sized]:
        """What is known so far, as in Sizes."""
        return self.sizes.sized

    def restart(self) -> None:
        """Forget what was traced: the replay starts over."""
        super().restart()
        self.held.clear()
        self.sizes.clear()

    @staticmethod
    def nth(each: Sized) -> int:
        """Return which of its runs at this place the operator made, counted from 0."""
        nth = each.key[-1]
        assert isinstance(nth, int)
        return nth

    def producer_of(self, tensor: Tensor) -> int:
        """Return what made this tensor."""
        return self.edge_to(tensor).producer

    def is_kept(self, node: Node, read: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """Take the size of what an operator gave; return whether its arguments are to be kept, as the judge says."""
        producers = [edge.producer for edge in node.traced.inputs]
        sized = self.sizes.add(
            node.traced.index, node.traced.op, node.place, read, producers, outputs, is_gradient=node.is_gradient
        )
        self.sizes.settle()
        return self._judge(self, sized, node)

    def _sized_leaf(self, tensor: Tensor) -> tuple[str, str]:
        kind, name = self._name_leaf(tensor)
        producer = -1 - len(self.leaves)
        self.sizes.add_leaf(producer, kind, name, tensor)
        self.sizes.settle()
        self.held[producer] = tensor.detach()
        return kind, name


def size_of(tensor: Tensor) -> Tensor | None:
    """Return the largest magnitude, on the device; None of integers, empty, sparse or one-byte tensors."""
    values = tensor.detach() if tensor.requires_grad else tensor
    is_number = values.is_floating_point() or values.is_complex()
    if not is_number or not values.numel() or values.dtype.itemsize < 2 or values.layout != torch.strided:
        return None
    return None if values.is_meta else torch.linalg.vector_norm(values, math.inf)


def octave_of(size: float) -> float:
    """Return the base-2 logarithm of a magnitude; -inf of 0, inf of what is not finite."""
    return math.inf if not math.isfinite(size) else math.log2(size) if size > 0 else -math.inf
