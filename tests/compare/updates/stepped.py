"""A step of a real torch optimizer, as a recording would hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.compare.updates.recorded import ParameterUpdate
from hypocenter.compare.values.tensor_file import Stored


def stored(tensor: Tensor) -> Stored:
    """A copy of the values as a file would have them."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.dtype == torch.bfloat16:
        return Stored(dtype=dtype, raw=tensor.detach().view(torch.int16).numpy().copy().view(np.uint16))
    return Stored(dtype=dtype, raw=tensor.detach().numpy().copy())


def state_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Stored]:
    """The optimizer's state of a parameter."""
    return {
        key: stored(value) for key, value in optimizer.state.get(parameter, {}).items() if isinstance(value, Tensor)
    }


def take(
    optimizer: Optimizer, parameter: Tensor, gradient: Tensor, step: int = 0, states: Mapping[str, Any] | None = None
) -> ParameterUpdate:
    """Let the optimizer step once; what it got and what it made of it.

    Args:
        states: options that the group is said to have, in place of those that it has.
    """
    parameter.grad = gradient.clone()
    before, state = stored(parameter), state_of(optimizer, parameter)
    optimizer.step()
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return ParameterUpdate(
        step=step, rank=0, name="weight", kind=type(optimizer).__name__,
        bases=tuple(f"{base.__module__}.{base.__qualname__}" for base in type(optimizer).__mro__),
        options={**group, **(states or {})}, before=before, after=stored(parameter), gradient=stored(gradient),
        state=state, state_after=state_of(optimizer, parameter),
    )  # fmt: skip


def stepped(
    make: Callable[[list[Tensor]], Optimizer],
    *,
    steps: int = 1,
    n: int = 64,
    seed: int = 0,
    size: float = 1.0,
    states: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
) -> ParameterUpdate:
    """The last of so many steps on random gradients of this size."""
    draw = torch.Generator().manual_seed(seed)
    parameter = torch.nn.Parameter(torch.randn(n, generator=draw).to(dtype))
    optimizer = make([parameter])
    for step in range(steps - 1):
        take(optimizer, parameter, (size * torch.randn(n, generator=draw)).to(dtype), step)
    return take(optimizer, parameter, (size * torch.randn(n, generator=draw)).to(dtype), steps - 1, states)
