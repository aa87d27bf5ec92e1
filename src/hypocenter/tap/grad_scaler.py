"""What is read off a `torch.amp.GradScaler`, or one made like it, and off the gradients of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hypocenter.tap.gradients import local
from hypocenter.tap.scaled import ScalerState


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
    return [(p, g) for group in optimizer.param_groups for p in group["params"] if (g := p.grad) is not None]


def devices_of(gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> set[str]:
    """Where gradients lie."""
    return {str(values.device) for _, gradient in gradients if (values := local(gradient)) is not None}
