"""Collectives as dispatched operators: which there are, what goes in, what comes out.

Their schemas do not say what they write, and a `DTensor` hides those that it makes from a dispatch mode that does not
step aside for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor"})
_NOTHING_SENT = frozenset({"wait_tensor", "check_for_nan", "_wrap_tensor_autograd", "mesh_get_process_group"})
_IN_PLACE = frozenset({"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_"})
_SENT, _RECEIVED = frozenset({"send"}), frozenset({"recv_", "recv_any_source_"})
_NO_VALUES = frozenset({"barrier", "monitored_barrier_"})
_WRAPPERS = frozenset({"DTensor", "AsyncCollectiveTensor"})


def is_wrapped(types: Iterable[type]) -> bool:
    """Return whether a dispatch mode must answer `NotImplemented`, to see what the wrapper does inside."""
    return any(kind.__name__ in _WRAPPERS for kind in types)


def is_collective(func: Any) -> bool:
    """Return whether this operator sends something to other ranks, or waits for them."""
    return func.namespace in _NAMESPACES and _base(func) not in _NOTHING_SENT


def operands(func: Any, args: Any) -> list[torch.Tensor]:
    """Return the tensors whose values are sent."""
    base = _base(func)
    if base in _NO_VALUES or base in _RECEIVED or not args:
        return []
    if func.namespace != "c10d" or base in _IN_PLACE or base in _SENT:
        return list(_tensors(args[0]))
    return list(_tensors(args[1]))


def result_of(func: Any, args: Any, out: Any) -> list[torch.Tensor]:
    """Return the tensors that hold what was received."""
    base = _base(func)
    if func.namespace != "c10d":
        return list(_tensors(out))
    return [] if base in _NO_VALUES or base in _SENT or not args else list(_tensors(args[0]))


def _base(func: Any) -> str:
    return func.__name__.partition(".")[0]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
