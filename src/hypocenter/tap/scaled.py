"""An update whose gradients carry a loss scale, whoever scales: torch, DeepSpeed, Megatron-Core, apex."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from hypocenter.tap.gradients import local


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
    found_inf: dict[str, bool] = field(default_factory=dict[str, bool])
    """Device -> whether the scaler found a gradient there that was not finite. To be filled in by the end of the step
    by whoever knows it: any True means that the update was skipped, all False that it was made. Empty: not known."""


@dataclass(slots=True, kw_only=True)
class PlainUpdate:
    """One update without a loss scale by a framework's own optimizer, which works on copies of the model's parameters.

    `gradients` as in ScaledUpdate.
    """

    optimizer: Any
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
    was_skipped: bool = False  # to be filled in by the end of the step
    is_refused: bool = False  # filled in before it: the inner optimizer is to find no gradients


@dataclass(slots=True, kw_only=True)
class Unscaling:
    """The user takes the loss scale out of an optimizer's gradients before the step, to clip them."""

    scaler: Any
    optimizer: Any
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]
    has_overflowed: bool | None = None  # known afterwards, where that costs no synchronisation


def torch_scaler_state(scaler: Any) -> ScalerState:
    """The state of a `torch.amp.GradScaler` or of one made like it. One transfer where the scale is on a device.

    The private fields are read because the public getters do the same and leave out the tracker.
    """
    scale, tracker = scaler._scale, scaler._growth_tracker
    if scale is None or tracker is None:
        scale, tracker = scaler._init_scale, scaler._init_growth_tracker
    elif isinstance(scale, torch.Tensor) and isinstance(tracker, torch.Tensor) and scale.device == tracker.device:
        scale, tracker = torch.stack((scale.float(), tracker.float())).tolist()
    return ScalerState(
        kind=type(scaler).__name__,
        scale=float(scale),
        growth_tracker=int(tracker),
        growth_interval=int(scaler._growth_interval),
        growth_factor=float(scaler._growth_factor),
        backoff_factor=float(scaler._backoff_factor),
        init_scale=float(scaler._init_scale),
    )


def is_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Whether `unscale_` has been called for this optimizer since the last update. Reads only."""
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return bool(getattr(state.get("stage"), "value", 0))


def torch_found_inf(scaler: Any, optimizer: Any, *, may_wait: bool) -> dict[str, bool]:
    """What a `torch.amp.GradScaler` found for this optimizer since the last update, by device.

    Args:
        may_wait: take it from a device that has to be waited for; otherwise such devices are left out.
    """
    states = getattr(scaler, "_per_optimizer_states", {})  # asked with `get`: a defaultdict must not grow
    found: Mapping[torch.device, Any] = states.get(id(optimizer), {}).get("found_inf_per_device", {})
    return {str(device): bool(value.item()) for device, value in found.items() if may_wait or device.type == "cpu"}


def gradients_of(optimizer: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(parameter, its .grad) of every parameter of an optimizer that has one."""
    return [(p, p.grad) for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def devices_of(gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> set[str]:
    """Where gradients lie."""
    return {str(values.device) for _, gradient in gradients if (values := local(gradient)) is not None}
