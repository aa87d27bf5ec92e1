"""An update whose gradients carry a loss scale, whoever scales: torch, DeepSpeed, Megatron-Core, apex, MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """The state of a loss scaler just before it steps. What a scaler does not have is None."""

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
    read_state: Callable[[], ScalerState]  # waits for a device, unless what is `on_device` has arrived
    gradients: Sequence[tuple[Any, Any]]
    is_unscaled: bool = False  # the user or the framework has taken the scale out of these gradients already
    on_device: Sequence[tuple[Any, Callable[[Sequence[float]], None]]] = ()
    """Numbers of the scaler that lie on a device, and who wants them: to be fetched with others."""
    found_inf: dict[str, bool] = field(default_factory=dict[str, bool])
    """Device -> whether the scaler found a gradient there that was not finite. To be filled in by the end of the step
    by whoever knows it: any True means that the update was skipped, all False that it was made. Empty: not known."""

    @property
    def device(self) -> str:
        """The device that the gradients are on."""
        return str(self.gradients[0][1].device) if self.gradients else "cpu"

    @property
    def state(self) -> ScalerState:
        """The state of the scaler as it was when its step began."""
        return self.read_state()


@dataclass(slots=True, kw_only=True)
class PlainUpdate:
    """One update without a loss scale by a framework's own optimizer, which works on copies of the model's parameters.

    `gradients` as in ScaledUpdate.
    """

    optimizer: Any
    gradients: Sequence[tuple[Any, Any]]
    was_skipped: bool = False  # to be filled in by the end of the step
    is_refused: bool = False  # filled in before it: the inner optimizer is to find no gradients


@dataclass(slots=True, kw_only=True)
class Unscaling:
    """The user takes the loss scale out of an optimizer's gradients before the step, to clip them."""

    scaler: Any
    optimizer: Any
    gradients: Sequence[tuple[Any, Any]]
    has_overflowed: bool | None = None  # known afterwards, where that costs no synchronisation
