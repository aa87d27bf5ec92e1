"""The arguments of an op as they were when it ran, kept so that it can be executed again; what is not kept is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

CAPTURE_BYTES = 256 << 20  # of one tensor: what adjudication and the bundle need


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Stands for an argument that was too large to keep."""

    n_bytes: int


def before_write(written: Sequence[torch.Tensor]) -> dict[int, torch.Tensor | LeftOut]:
    """Copy what an op is about to change in place; return the copies by the tensor's id."""
    return {
        id(t): t.detach().clone() if t.numel() == 0 or 0 < n_bytes(t) <= CAPTURE_BYTES else LeftOut(n_bytes(t))
        for t in written
    }


def detached(value: Any, captured: Mapping[int, torch.Tensor | LeftOut]) -> Any:
    """Return the arguments as they were before the op ran, off the graph; a `LeftOut` for what is too large."""
    if isinstance(value, torch.Tensor):
        kept = captured.get(id(value))
        if kept is not None:
            return kept
        return value.detach() if n_bytes(value) <= CAPTURE_BYTES else LeftOut(n_bytes(value))
    if isinstance(value, (list, tuple)):
        return type(value)(detached(item, captured) for item in value)
    if isinstance(value, dict):
        return {key: detached(item, captured) for key, item in value.items()}
    return value


def largest_left_out(value: Any) -> LeftOut | None:
    """Return the largest argument that was left out; None if all are there."""
    if isinstance(value, LeftOut):
        return value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    found = [left_out for item in items if (left_out := largest_left_out(item)) is not None]
    return max(found, key=lambda each: each.n_bytes, default=None)


def n_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a dense tensor's elements; 0 for other layouts."""
    return tensor.numel() * tensor.element_size() if tensor.layout == torch.strided else 0
