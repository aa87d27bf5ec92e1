"""A micro-batch done again to look at the health of what it computes: activations, attention, routers, ranks.

What an operator is, is told by what it does: a softmax whose result is multiplied with values is attention, a choice of
the largest scores that a parameter makes is a router, whatever their classes are called. What each look finds is a
short vector on its device; all of them come to the host together.

A look is one file in `looks/`:

    @look("gates")
    def find(call: Call) -> Iterator[Found]: ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hypocenter.catalogue import Catalogue
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.collective_ops import is_wrapped
from hypocenter.tap.dispatch import Mode, declared, is_mutable, name_of
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.op_tensors import read_by, storage_key, tensors_among
from hypocenter.tap.operator_calls import is_silent
from hypocenter.tap.storages import Storages

LOSS = "loss"  # how OpContext calls the code outside of modules
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "_grouped_mm", "convolution"})
_SAME_VALUES = frozenset({"_to_copy", "clone", "contiguous", "detach", "copy_"})
_CHANGED = frozenset({"silu_", "gelu_", "mish_", "hardswish_", "hardtanh_", "sigmoid_", "tanh_"})
_FARTHEST = 24  # operators between a product and what is looked at


@dataclass(slots=True, eq=False)
class Step:
    """An operator that ran, without its tensors."""

    index: int
    op: str  # relu
    site: str
    module: str
    nth: int  # of its kind at this site
    inputs: tuple[int, ...]  # indices of the operators that made what it read; -1: it comes from outside
    parameter: str = ""  # whose values it gives, in another format or layout
    features: int = 0  # of a product with a parameter: how many it gives for each row
    is_named: bool = False  # another look knows what it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Numbers that a look has found at an operator."""

    step: Step
    port: str
    values: Tensor  # 1-d, on its device
    dtype: str = ""
    then: Callable[[Sequence[float]], Sequence[float]] = tuple  # what becomes of them on the host
    is_meant: Callable[[], bool] = lambda: True  # asked at the end, when it is known what was made of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operator that has just run."""

    step: Step
    given: Mapping[str, Any]  # its arguments by name
    outputs: Sequence[Tensor]
    trace: Looking

    @property
    def of_module(self) -> bool:
        """Whether it belongs to a module, not to the code around the model."""
        return self.step.site != LOSS

    def kept(self, port: str, fresh: Tensor) -> Tensor:
        """Return what was kept of the same operator at the look before, if it has this shape; else `fresh`."""
        before = self.trace.memory.get((port, self.step.site, self.step.op, self.step.nth))
        is_alike = before is not None and before.shape == fresh.shape and before.device == fresh.device
        return before if is_alike and before is not None else fresh

    def keep(self, port: str, values: Tensor) -> None:
        """Keep values for the next look."""
        self.trace.memory[port, self.step.site, self.step.op, self.step.nth] = values


Look = Callable[[Call], Iterator[Found]]
CATALOGUE: Catalogue[Look] = Catalogue("hypocenter.replay.looks")


def look(name: str) -> Callable[[Look], Look]:
    """Register a look under the name of its file."""
    return CATALOGUE.adding(name, lambda find: find)


@dataclass(slots=True)
class Memory:
    """The values that looks keep from one to the next, on their device; and the looks that failed, with the error."""

    kept: dict[tuple[str, str, str, int], Tensor] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)

    def get(self, key: tuple[str, str, str, int]) -> Tensor | None:
        """Return what was kept under a key; None if nothing was."""
        return self.kept.get(key)

    def __setitem__(self, key: tuple[str, str, str, int], values: Tensor) -> None:
        self.kept[key] = values


class Looking(Mode):
    """Show each operator of a forward pass to all looks; nothing waits for the device until `settle`.

    Args:
        context: where operators run.
        parameters: of the models, by name.
        memory: of the looks before.
    """

    def __init__(self, context: OpContext, parameters: Sequence[tuple[str, Tensor]], memory: Memory) -> None:
        super().__init__()
        self.context, self.memory = context, memory
        self.steps: list[Step] = []
        self.found: list[Found] = []
        self.used: frozenset[int] = frozenset()  # operators that the loss descends from, once it is known
        self.ranked = set[tuple[int, int]]()  # what the rank was taken of
        self.routed = set[int]()  # products whose results experts were chosen by
        self._parameters = {key: name for name, p in parameters if (key := storage_key(p))}
        self._storages, self._counts = Storages(), Counter[tuple[str, str]]()
        self._around = torch._C._current_graph_task_id()
        self._before = dict(memory.kept)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions are run eagerly in a replay."""
        return True

    def restart(self) -> None:
        """Forget what was seen: the replay starts over."""
        self.steps.clear()
        self.found.clear()
        self.ranked.clear()
        self.routed.clear()
        self._storages, self._counts = Storages(), Counter()
        self.memory.kept = dict(self._before)

    def made(self, tensor: Any) -> Step | None:
        """Return the operator that made a tensor; None for one from outside."""
        if not isinstance(tensor, Tensor) or not self._storages.knows(tensor):
            return None
        return self.steps[self._storages.read(tensor)[0]]

    def before(self, step: Step) -> Iterator[Step]:
        """Yield the operators that made what it read."""
        return (self.steps[index] for index in step.inputs if index >= 0)

    def parameter_of(self, tensor: Any) -> str:
        """Return the parameter whose values a tensor holds, also in another format or layout; "" if none's."""
        if not isinstance(tensor, Tensor):
            return ""
        step = self.made(tensor)
        return self._parameters.get(storage_key(tensor), "") if step is None else step.parameter

    def product_behind(self, tensor: Tensor) -> Step | None:
        """Return the nearest product with a parameter that a tensor descends from; None if there is none nearby."""
        first = self.made(tensor)
        waiting, seen = [first] if first is not None else [], set[int]()
        while waiting and len(seen) < _FARTHEST:
            step = waiting.pop(0)
            if step.features:
                return step
            if step.index not in seen:
                seen.add(step.index)
                waiting += self.before(step)
        return None

    def descends(self, tensor: Tensor, *ops: str) -> Step | None:
        """Return the nearest of these operators that a tensor is made from, not looking behind products; else None."""
        step = self.made(tensor)
        waiting, seen = [step] if step is not None else [], set[int]()
        while waiting and len(seen) < _FARTHEST:
            step = waiting.pop(0)
            if step.op.rstrip("_") in ops or step.op in ops:
                return step
            if step.index not in seen and not step.features:
                seen.add(step.index)
                waiting += self.before(step)
        return None

    def unit_dim(self, tensor: Tensor) -> int:
        """Return the dimension of a tensor that counts units, or channels: that of the product that it was made by.

        Where the product was cut into parts, the largest dimension that it may have been cut into.
        """
        product = self.product_behind(tensor)
        usual = 1 if product is not None and product.op == "convolution" else -1
        if product is None or tensor.shape[usual] == product.features:
            return usual
        parts = {size: d for d, size in enumerate(tensor.shape) if d and size > 1 and product.features % size == 0}
        return parts[max(parts)] if parts else usual

    def behind(self, values: Sequence[Tensor]) -> frozenset[int]:
        """Return the indices of all operators that these values descend from."""
        waiting = [step.index for value in values if (step := self.made(value)) is not None]
        seen = set[int]()
        while waiting:
            index = waiting.pop()
            if index >= 0 and index not in seen:
                seen.add(index)
                waiting += self.steps[index].inputs
        return frozenset(seen)

    def settle(self) -> list[tuple[Found, Sequence[float]]]:
        """Return what was found, with its numbers: one transfer for each device."""
        found = [each for each in self.found if each.is_meant()]
        numbers: dict[int, list[float]] = {}
        for device in {each.values.device for each in found}:
            here = [i for i, each in enumerate(found) if each.values.device == device]
            sizes = [found[i].values.numel() for i in here]
            flat = torch.cat([in_float64(found[i].values.reshape(-1)) for i in here]).cpu()
            numbers.update(zip(here, (part.tolist() for part in flat.split(sizes)), strict=True))
        self.found = []
        return [(each, each.then(numbers[i])) for i, each in enumerate(found)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_wrapped(types):
            return NotImplemented
        if torch._C._current_graph_task_id() != self._around or func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        op = name_of(func).split(".")[1]
        given = _named(func, args, kwargs)
        if op in _CHANGED:
            given["self"] = given["self"].clone()
        read = read_by(args, kwargs)
        inputs = tuple(self._storages.read(t)[0] if self._storages.knows(t) else -1 for t in read)
        out = func(*args, **kwargs)
        outputs = tensors_among(out)
        if is_mutable(func) and not outputs:
            outputs = read[:1]
        if outputs and not is_silent(func):
            self._add(op, given, read, inputs, outputs)
        return out

    def _add(
        self, op: str, given: Mapping[str, Any], read: list[Tensor], inputs: tuple[int, ...], outputs: list[Tensor]
    ) -> None:
        site, module = self.context.called or (LOSS, "")
        nth = self._counts[site, op]
        self._counts[site, op] += 1
        step = Step(len(self.steps), op, site, module, nth, inputs)
        names = [self.parameter_of(tensor) for tensor in read]
        if op in PRODUCTS and any(name for name, tensor in zip(names, read, strict=True) if name and tensor.dim() > 1):
            step.features = outputs[0].shape[1 if op == "convolution" else -1]
        elif op in _SAME_VALUES and names:
            step.parameter = names[-1]
        self.steps.append(step)
        if outputs[0].numel():
            self._look(Call(step=step, given=given, outputs=outputs, trace=self))
        for tensor in outputs:
            self._storages.write(tensor, step.index)

    def _look(self, call: Call) -> None:
        with torch.no_grad():
            for name, find in CATALOGUE.entries().items():
                if name not in self.memory.failed:
                    try:
                        self.found += find(call)
                    except Exception as error:  # an operator that nobody thought of: the other looks go on
                        self.memory.failed[name] = error


def _named(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names in the schema; those that were not given have their defaults."""
    found = {argument.name: argument.default_value for argument in declared(func)}
    found.update(zip(found, args, strict=False))
    return {**found, **kwargs}


def streak(call: Call, port: str, answered: Tensor) -> Tensor:
    """Return for how many looks in a row each has not answered, this one included: float32, on its device."""
    before = call.kept(port, torch.zeros(answered.shape, device=answered.device))
    now = torch.where(answered, torch.zeros_like(before), before + 1)
    call.keep(port, now)
    return now


def looks_so_far(call: Call, port: str, like: Tensor) -> Tensor:
    """Return how often this operator was looked at, as a 0-d tensor."""
    n = call.kept(f"{port}.n", torch.zeros((), device=like.device)) + 1
    call.keep(f"{port}.n", n)
    return n


def by_unit(values: Tensor, dim: int) -> Tensor:
    """Return the values as [units, elements of each]."""
    return values.movedim(dim, 0).reshape(values.shape[dim], -1)
