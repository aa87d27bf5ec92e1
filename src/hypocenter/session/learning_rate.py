"""The learning rate that a torch optimizer is about to use, and how long it remembers gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hypocenter.tap.tape import version_of
from hypocenter.tap.weakly import Ref

RATES = ("lr", "initial_lr", "max_lr")  # of a parameter group: now, and what its schedule begins with or reaches

_read: dict[int, tuple[weakref.ref[torch.Tensor], int, float]] = {}  # by id: what a tensor on a device held when


def learning_rate(optimizer: Any) -> float | None:
    """Return the learning rate of the first parameter group; None if it is not a number."""
    return number_of(optimizer.param_groups[0].get("lr")) if optimizer.param_groups else None


def decays(optimizer: Any) -> tuple[float, float]:
    """Return the decay per update of the means of gradients and of their squares; 0.0: none, or on a device."""
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    betas = group.get("betas")
    pair = (
        betas if isinstance(betas, (tuple, list)) and len(betas) >= 2 else (group.get("momentum"), group.get("alpha"))
    )
    first, second = pair[:2]
    return (
        float(first) if isinstance(first, (int, float)) and 0.0 < first < 1.0 else 0.0,
        float(second) if isinstance(second, (int, float)) and 0.0 < second < 1.0 else 0.0,
    )


def number_of(value: Any) -> float | None:
    """Return a number, or the element of a tensor of one; one on a device is read only if it was written to since."""
    if isinstance(value, (int, float)):
        return float(value)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        return None
    if value.device.type == "cpu":
        return float(value)
    known = _known(value)
    return _note(value, version_of(value), float(value)) if known is None else known


def ride_along(optimizer: Any, ride: Callable[[torch.Tensor, Callable[[Sequence[float]], None]], None]) -> None:
    """Let learning rates on a device that were written to come to the host with the next check of gradients."""
    for group in getattr(optimizer, "param_groups", ())[:1]:
        for value in map(group.get, RATES):
            is_one = isinstance(value, torch.Tensor) and value.device.type != "cpu" and value.numel() == 1
            if is_one and _known(value) is None:
                ride(value.detach().reshape(1).float(), _noting(value))


def _noting(value: torch.Tensor) -> Callable[[Sequence[float]], None]:
    version = version_of(value)

    def arrive(numbers: Sequence[float]) -> None:
        _note(value, version, numbers[0])

    return arrive


def _known(value: torch.Tensor) -> float | None:
    ref, version, number = _read.get(id(value), (None, 0, 0.0))
    return number if ref is not None and ref() is value and version == version_of(value) else None


def _note(value: torch.Tensor, version: int, number: float) -> float:
    for key in [key for key, (ref, _, _) in _read.items() if ref() is None]:
        del _read[key]
    _read[id(value)] = Ref(value), version, number
    return number
