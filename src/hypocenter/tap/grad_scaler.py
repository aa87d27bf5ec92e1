"""What is read off a `torch.amp.GradScaler`, or one made like it, and off the gradients of an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from hypocenter.tap.gradients import Gradients, are_plain, local
from hypocenter.tap.scaled import ScaledUpdate, ScalerState

Riders = list[tuple[torch.Tensor, Callable[[Sequence[float]], None]]]


class TorchScaler:
    """Reads, when it is called, the state of a `torch.amp.GradScaler` or of one made like it.

    The private fields are read because the public getters do the same and leave out the tracker.

    Attributes:
        riders: its scale and tracker, if they lie on a device: nobody waits for them once they have been fetched.
    """

    def __init__(self, scaler: Any) -> None:
        self.riders: Riders = []
        self._of = functools.partial(
            ScalerState, kind=type(scaler).__name__, growth_interval=int(scaler._growth_interval),
            growth_factor=float(scaler._growth_factor), backoff_factor=float(scaler._backoff_factor),
            init_scale=float(scaler._init_scale),
        )  # fmt: skip
        scale, tracker = scaler._scale, scaler._growth_tracker
        if scale is None or tracker is None:
            scale, tracker = scaler._init_scale, scaler._init_growth_tracker
        self._numbers: torch.Tensor | None = None
        self._state: ScalerState | None = None
        if isinstance(scale, torch.Tensor) and isinstance(tracker, torch.Tensor) and scale.device == tracker.device:
            self._numbers = torch.stack((scale.float().reshape(()), tracker.float().reshape(())))
            if scale.device.type != "cpu":
                self.riders.append((self._numbers, self._arrive))
        else:
            self._arrive((float(scale), float(tracker)))

    def _arrive(self, numbers: Sequence[float]) -> None:
        self._state = self._of(scale=numbers[0], growth_tracker=int(numbers[1]))

    def __call__(self) -> ScalerState:
        if self._state is None and self._numbers is not None:
            self._arrive(self._numbers.tolist())
        assert self._state is not None
        return self._state


def torch_scaler_state(scaler: Any) -> ScalerState:
    """Read the state of a `torch.amp.GradScaler` or one made like it. One transfer where the scale is on a device."""
    return TorchScaler(scaler)()


def is_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Return whether `unscale_` was called for this optimizer since the last update. Changes nothing."""
    state = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {})
    return bool(getattr(state.get("stage"), "value", 0))


def torch_found_inf(scaler: Any, optimizer: Any, *, may_wait: bool) -> dict[str, bool]:
    """Return, by device, if a `torch.amp.GradScaler` found inf or NaN for this optimizer since the last update.

    Args:
        may_wait: take it from a device that has to be waited for; otherwise such devices are left out.
    """
    states = getattr(scaler, "_per_optimizer_states", {})  # asked with `get`: a defaultdict must not grow
    found: Mapping[torch.device, Any] = states.get(id(optimizer), {}).get("found_inf_per_device", {})
    return {str(device): bool(value.item()) for device, value in found.items() if may_wait or device.type == "cpu"}


def found_inf_riders(scaler: Any, optimizer: Any, found: dict[str, bool]) -> Riders:
    """Fill `found` as `torch_found_inf` does: at once from the CPU; returned are riders that fill it from devices."""
    states = getattr(scaler, "_per_optimizer_states", {})
    waiting: Mapping[torch.device, Any] = states.get(id(optimizer), {}).get("found_inf_per_device", {})
    found |= torch_found_inf(scaler, optimizer, may_wait=False)

    def fill(name: str, numbers: Sequence[float]) -> None:
        found[name] = bool(numbers[0])

    return [
        (value.detach().reshape(1).float(), functools.partial(fill, str(device)))
        for device, value in waiting.items() if device.type != "cpu"
    ]  # fmt: skip


def found_nothing(update: ScaledUpdate) -> dict[str, bool]:
    """Predict what torch's own scaler will find in gradients that are finite. Empty: it cannot be told.

    A scaler of another class may ask other ranks, or the device, and so do its kernels for a DTensor.
    """
    gradients = [gradient for _, gradient in update.gradients]
    is_own = type(update.scaler) is torch.amp.GradScaler and not update.is_unscaled and are_plain(gradients)
    return dict.fromkeys(devices_of(update.gradients), False) if is_own else {}


def gradients_of(optimizer: Any) -> Gradients:
    """Return (parameter, its .grad) of every parameter of an optimizer that has one."""
    return Gradients.of(parameters_of(optimizer))


class Parameters(list[torch.Tensor]):
    """Parameters of an optimizer. As long as it holds the same ones, each of its updates is given the same list."""

    @functools.cached_property
    def ids(self) -> frozenset[int]:
        """Their ids."""
        return frozenset(map(id, self))


def parameters_of(optimizer: Any) -> Parameters:
    """Return all parameters of an optimizer, group by group."""
    found = Parameters()
    for group in optimizer.param_groups:
        found += group["params"]
    return found


def devices_of(gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> set[str]:
    """Return the devices that gradients lie on."""
    return {str(values.device) for _, gradient in gradients if (values := local(gradient)) is not None}
