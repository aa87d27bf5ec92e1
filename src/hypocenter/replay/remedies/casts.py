"""Tensors of a call to another floating-point format and back, in nested arguments and results.

Traceable by torch.compile: no ids, no copying protocols. Looks into tuples, lists, dicts and dataclasses; any other
object (a KV cache) is left alone, because the module may write to it and the caller may read it.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, cast

import torch
from torch import Tensor

NARROWER: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.float32: (torch.float16, torch.bfloat16),
    torch.float64: (torch.float16, torch.bfloat16, torch.float32),
    torch.bfloat16: (torch.float16,),
}
"""What an island of a format casts: formats with a smaller range or fewer digits; bfloat16 is there for its range."""


class Caster:
    """Casts to `dtype` all tensors whose dtype is in `which`; a tensor met twice becomes one tensor."""

    def __init__(self, dtype: torch.dtype, which: tuple[torch.dtype, ...]) -> None:
        self.dtype = dtype
        self.which = which
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self._n_replaced = 0  # torch.compile cannot compare tuples with `is`, so this tells what has changed

    @property
    def first(self) -> torch.dtype | None:
        """The dtype that the first cast tensor had; None if none was cast."""
        return self.pairs[0][0].dtype if self.pairs else None

    def cast(self, value: Any) -> Any:
        """Return the value with its tensors cast; what holds none to cast is returned as it is."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, (tuple, list)):
            return self._sequence(value)
        if isinstance(value, dict):
            return self._mapping(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        return value

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.dtype not in self.which:
            return tensor
        self._n_replaced += 1
        for old, new in self.pairs:  # few: a dict by id is nothing torch.compile could trace
            if old is tensor:
                return new
        new = tensor.to(self.dtype)
        self.pairs.append((tensor, new))
        return new

    def _sequence(self, value: Any) -> Any:
        before = self._n_replaced
        new = [self.cast(item) for item in value]
        if self._n_replaced == before:
            return value
        if hasattr(value, "_fields"):
            return type(value)(*new)
        if type(value) in (tuple, list):
            return tuple(new) if isinstance(value, tuple) else new
        return type(value)(new)

    def _mapping(self, value: dict[Any, Any]) -> Any:
        before = self._n_replaced
        new = {key: self.cast(item) for key, item in value.items()}
        if self._n_replaced == before:
            return value
        if type(value) is dict:
            return new
        if dataclasses.is_dataclass(value):  # ModelOutput
            return type(value)(**new)
        changed = copy.copy(value)
        changed.update(new)
        return changed

    def _dataclass(self, value: Any) -> Any:
        before = self._n_replaced
        old = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        new = {name: self.cast(item) for name, item in old.items()}
        return value if self._n_replaced == before else cast("Any", dataclasses.replace)(value, **new)


def back(value: Any, wide: torch.dtype, narrow: torch.dtype) -> Any:
    """Return a result in its inputs' format. Scalars (losses) stay: nothing multiplies them, and they may be large."""
    return _Back(narrow, (wide,)).cast(value)


class _Back(Caster):
    def _tensor(self, tensor: Tensor) -> Tensor:
        return super()._tensor(tensor) if tensor.dim() > 0 else tensor
