"""An update whose gradients carry a loss scale, whoever scales: torch, DeepSpeed, Megatron-Core, apex."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """A loss scaler just before it steps. What a scaler does not have is None."""

    kind: str  # class name: GradScaler, DynamicLossScaler, DynamicGradScaler, ...
    scale: float
    is_dynamic: bool = True
    growth_tracker: int | None = None  # steps without overflow since the scale last changed
    growth_interval: int | None = None  # of these, how many make it grow
    growth_factor: float | None = None
    backoff_factor: float | None = None
    init_scale: float | None = None
    min_scale: float | None = None  # never goes below it
    hysteresis: int | None = None  # overflows that are still forgiven before the scale falls


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledUpdate:
    """One update under a loss scaler: its state, and the gradients that it is about to look at.

    `gradients` holds (parameter, gradient) for each parameter that has one here. The parameter is the one that the
    user's model has, so that it has a name; the gradient may belong to a copy of it (float32 main gradients).
    """

    scaler: Any
    optimizer: Any
    state: ScalerState
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
    is_unscaled: bool = False  # the user or the framework has taken the scale out of these gradients already


def torch_scaler_state(scaler: Any) -> ScalerState:
    """The state of a `torch.amp.GradScaler` or of one made like it. One transfer where the scale is on a device.

    The private fields are read because the public getters do the same and leave out the tracker.
    """
    scale, tracker = scaler._scale, scaler._growth_tracker
    return ScalerState(
        kind=type(scaler).__name__,
        scale=float(scaler._init_scale if scale is None else scale),
        growth_tracker=int(scaler._init_growth_tracker if tracker is None else tracker),
        growth_interval=int(scaler._growth_interval),
        growth_factor=float(scaler._growth_factor),
        backoff_factor=float(scaler._backoff_factor),
        init_scale=float(scaler._init_scale),
    )


def gradients_of(optimizer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(parameter, its .grad) of every parameter of an optimizer that has one."""
    return [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
