"""Any nested value in, its tensors out (with where they sit in it), or the same value with every tensor replaced."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor

from hypocenter.tap.walking import MAX_DEPTH, MAX_NODES, MAX_TENSORS, Walk, children

_LEAVES = (
    str, bytes, int, float, complex, bool, type(None), range, slice, type, torch.dtype, torch.device, torch.Size,
    torch.Generator, torch.layout, torch.memory_format, torch.nn.Module, torch.optim.Optimizer, torch.UntypedStorage,
    FunctionType, MethodType, ModuleType, Enum,
)  # fmt: skip


def tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor in a nested value with its port suffix: "" for a bare tensor, "[0]", "[logits]".

    Looks into sequences, mappings, dataclasses, ModelOutput, and the attributes of any other object (KV caches), but
    not into modules, optimizers and code. Depth and count are bounded, cycles are safe; a container met twice is
    walked once, at its first place.
    """
    if isinstance(value, Tensor):
        return iter((("", value),))
    return iter(flatten(value))


def flatten(value: object, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Return every tensor in a nested value with its suffix, as `tensors` does, with `prefix` before each."""
    walk = Walk(Tensor, _LEAVES)
    walk.visit(value, prefix, 0)
    return walk.found


def replace_tensors(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure with `fn(tensor)` in place of every tensor that `tensors` finds.

    Types are kept (ModelOutput, namedtuple, dataclass, any object that can be shallow-copied); what holds no changed
    tensor is returned as it is, not copied. A tensor or container that sits at two places is replaced by one object.
    A container that contains itself keeps the original at the inner place.
    """
    return _Replace(fn).visit(value, 0)


class _Replace:
    def __init__(self, fn: Callable[[Tensor], Tensor]) -> None:
        self._fn = fn
        self._memo: dict[int, Any] = {}
        self._kept: list[Any] = []  # holds what the memo's ids stand for, so that none is used again meanwhile
        self._n_tensors = self._n_nodes = 0

    def visit(self, value: Any, depth: int) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, Tensor):
            self._n_tensors += 1
            return self._remember(value, self._fn(value) if self._n_tensors <= MAX_TENSORS else value)
        if isinstance(value, _LEAVES) or depth > MAX_DEPTH or self._n_nodes > MAX_NODES:
            return value
        self._remember(value, value)
        changed: dict[Any, Any] = {}
        for key, child in children(value):
            self._n_nodes += 1
            new = self.visit(child, depth + 1)
            if new is not child:
                changed[key] = new
        return self._remember(value, _rebuild(value, changed)) if changed else value

    def _remember(self, value: Any, new: Any) -> Any:
        self._kept.append(value)
        self._memo[id(value)] = new
        return new


def _rebuild(value: Any, changed: Mapping[Any, Any]) -> Any:
    try:
        if isinstance(value, tuple):
            return _rebuild_tuple(cast("tuple[Any, ...]", value), changed)
        if isinstance(value, MappingProxyType):
            return MappingProxyType({**value, **changed})
        new = copy.copy(value)
        for key, child in changed.items():
            if isinstance(value, (list, deque, Mapping)):
                new[key] = child
            else:
                object.__setattr__(new, key, child)
        return new
    except Exception:  # cannot be copied or written to: leaving it alone is what the docstring says
        return value


def _rebuild_tuple(value: tuple[Any, ...], changed: Mapping[Any, Any]) -> Any:
    items = [changed.get(i, child) for i, child in enumerate(value)]
    if hasattr(type(value), "n_sequence_fields"):  # torch.return_types.*, which tuple.__new__ refuses
        return type(value)(items)
    new = tuple.__new__(type(value), items)
    if extra := getattr(value, "__dict__", None):
        new.__dict__.update(extra)
    return new
