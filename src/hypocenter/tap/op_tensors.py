"""The tensors among an operator's arguments, and what tells their storages apart."""

from __future__ import annotations

from typing import Any

import torch


def tensors_among(*values: Any) -> list[torch.Tensor]:
    """Return all tensors in arguments, which nest in lists, tuples and dictionaries only."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_among(*value))
        elif isinstance(value, dict):
            found.extend(tensors_among(*value.values()))
    return found


def read_by(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator reads: all but those that it only writes its result to."""
    return tensors_among(args, {key: value for key, value in kwargs.items() if key != "out"})


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that tells storages apart while they live; 0 for a tensor without a storage."""
    try:
        return tensor.untyped_storage()._cdata if tensor.device.type != "meta" else 0
    except (NotImplementedError, RuntimeError):
        return 0
