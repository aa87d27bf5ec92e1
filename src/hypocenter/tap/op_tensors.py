"""The tensors among an operator's arguments, and what tells their storages apart."""

from __future__ import annotations

from typing import Any

import torch

_NUMBERS = frozenset({int, float, bool, type(None)})


def tensors_among(*values: Any) -> list[torch.Tensor]:
    """Return all tensors in arguments, which nest in lists, tuples and dictionaries only."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif type(value) in _NUMBERS:  # the most beside tensors
            continue
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_among(*value))
        elif isinstance(value, dict):
            found.extend(tensors_among(*value.values()))
    return found


def read_by(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator reads: all but those that it only writes its result to."""
    found = tensors_among(*args)
    if kwargs:
        found += tensors_among(*(value for key, value in kwargs.items() if key != "out"))
    return found


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that tells storages apart while they live; 0 for a tensor without a storage."""
    try:
        return 0 if tensor.is_meta else tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return 0
