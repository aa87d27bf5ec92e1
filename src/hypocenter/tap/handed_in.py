"""Inputs that do not come as arguments: Megatron-Core puts what a pipeline stage received into an attribute, `input_tensor`.

By the time of a replay the attribute holds the last micro-batch's; each call is done again with its own.
"""  # noqa: E501

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from typing import Any

import torch

_ATTRIBUTE = "input_tensor"

Held = tuple[torch.nn.Module, Any]
"""A module, and what its attribute held: a tensor, or a list of them."""


def holders_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the modules that are handed their input in the attribute."""
    return [part for part in module.modules() if _ATTRIBUTE in part.__dict__]


def held_by(holders: Sequence[torch.nn.Module]) -> list[Held]:
    """Return (module, input) for what the modules hold now; only references are kept."""
    return [(module, value) for module in holders if (value := module.__dict__.get(_ATTRIBUTE)) is not None]


@contextlib.contextmanager
def handed_in(held: Sequence[Held]) -> Generator[None, None, None]:
    """Put inputs back for this context, cut off from the run's graph; then modules hold what they held before."""
    before = [(module, module.__dict__.get(_ATTRIBUTE)) for module, _ in held]
    try:
        for module, value in held:
            setattr(module, _ATTRIBUTE, _apart(value))
        yield
    finally:
        for module, value in before:
            setattr(module, _ATTRIBUTE, value)


def _apart(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_apart(each) for each in value)  # type: ignore[reportUnknownVariableType]
    if isinstance(value, torch.Tensor):
        return value.detach().requires_grad_(value.requires_grad)
    return value
