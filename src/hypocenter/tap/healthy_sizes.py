"""The sizes of what operators give in a step that is healthy, for the price of little more than the step.

What the op trace (hypocenter.tap.tracer) finds out of each operator serves to blame one, and asks the device each time
whether values are finite. Here nothing is wrong and nobody is blamed: which operator reads whose result is followed as
there, by storage, and all that is taken is a size, on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hypocenter.tap.collective_ops import is_collective, is_wrapped, operands, result_of
from hypocenter.tap.dispatch import ReplayMode, is_mutable, name_of
from hypocenter.tap.gains import Sizes
from hypocenter.tap.gradient_flow import GradientFlow
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.op_tensors import read_by, storage_key
from hypocenter.tap.poison import makes_room
from hypocenter.tap.tracer import written_arguments


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is asked of an operator at each call."""

    name: str
    base: str
    is_passed_by: bool
    is_collective: bool
    is_mutable: bool
    is_constant: bool  # made of Python numbers: its storage is new to us


class HealthySizes(ReplayMode):
    """Takes the sizes that hypocenter.tap.gains.SizeTracer would take. `sizes.settle` brings them to the host.

    Args:
        context: where operators run.
        leaf: names tensors from outside: tensor -> (kind, name).
        scale: loss scale in the gradients.
        check: called with each operator: it may raise to end all this.

    Attributes:
        n_rooms: how many results were memory that nobody has written yet.
    """

    def __init__(
        self,
        context: OpContext,
        leaf: Callable[[Tensor], tuple[str, str]],
        *,
        scale: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.sizes, self.n_rooms = Sizes(scale), 0
        self._context, self._leaf, self._check = context, leaf, check
        self._kinds: dict[Any, _Kind] = {}
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: the replay starts over."""
        self.sizes.clear()
        self._flow = GradientFlow()
        self._producers: dict[int, int] = {}  # by storage
        self._alive: dict[int, StorageWeakRef] = {}  # of these: an address is not given anew while it is known
        self._n_ops = self._n_leaves = self.n_rooms = 0

    def starts_from(self, seeds: Sequence[Tensor | None]) -> None:
        """Begin to follow backward, which starts from these gradients (None where torch makes one)."""
        self._flow.start(seeds)

    def producer_of(self, tensor: Tensor) -> int:
        """Return what made this tensor (of a DTensor, what is here of it)."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        return self._producer(tensor, storage_key(tensor))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, self._kinds.get(func) or self._kind(func)
        if types and is_wrapped(types):
            return NotImplemented  # we want what the wrapper does inside
        if kind.is_passed_by:
            return func(*args, **kwargs)
        self._check()
        read = operands(func, args) if kind.is_collective else read_by(args, kwargs)
        keys = list(map(storage_key, read))
        if kind.is_constant:
            for key in keys:
                self._producers.pop(key, None)
        producers = list(map(self._producer, read, keys))
        out = func(*args, **kwargs)
        if kind.is_collective:
            outputs = result_of(func, args, out)
        else:
            written = written_arguments(func, args, kwargs) if kind.is_mutable else []
            outputs = [each for each in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(each, Tensor)]
            outputs = outputs or written
            self.n_rooms += makes_room(func, out)
            if not written and outputs and all((key := storage_key(t)) and key in keys for t in outputs):
                self._context.place(kind.name)  # of a Function that begins with a view the backward belongs here
                return out
        place, index = self._context.place(kind.name), self._n_ops
        self._n_ops += 1
        for tensor in outputs:
            self._note(tensor, storage_key(tensor), index)
        is_gradient = self._flow.note(kind.base, read, outputs) and place.phase == "backward"
        self.sizes.add(index, kind.name, place, read, producers, outputs, is_gradient=is_gradient)
        return out

    def _kind(self, func: Any) -> _Kind:
        name = name_of(func)
        found = self._kinds[func] = _Kind(
            name=name, base=name.split(".")[1], is_passed_by=func.namespace in ("prim", "profiler"),
            is_collective=is_collective(func), is_mutable=is_mutable(func),
            is_constant=name == "aten.lift_fresh.default",
        )  # fmt: skip
        return found

    def _producer(self, tensor: Tensor, key: int) -> int:
        known = self._producers.get(key)
        if known is None:
            self.sizes.add_leaf(-1 - self._n_leaves, *self._leaf(tensor), tensor)
            self._n_leaves += 1
            known = -self._n_leaves
            self._note(tensor, key, known)
        return known

    def _note(self, tensor: Tensor, key: int, producer: int) -> None:
        if key:
            if key not in self._alive:
                self._alive[key] = StorageWeakRef(tensor.untyped_storage())
            self._producers[key] = producer
