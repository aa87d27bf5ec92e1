"""Loss scaling: mindspore.amp's scalers, the managers inside TrainOneStepWithLossScaleCell, a fixed `sens`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import amp  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.tape import Scale


class ScalerListener(Protocol):
    """What is told of scalers."""

    def on_scale(self, scale: Scale) -> None: ...
    def on_unscale(self, scale: Scale) -> None: ...
    def on_adjust(self, scaler: Any, finite: bool) -> None: ...


class ScalerTap:
    """Tells of calls of amp.LossScaler's methods.

    Attributes:
        paused: nothing is told.
    """

    def __init__(self, listener: ScalerListener) -> None:
        self._listener = listener
        self.paused = False
        self._seen: set[type] = set()
        self._patches: Patches | None = None

    def attach(self, patches: Patches) -> None:
        """Patch the scaler classes that there are; `patches` takes it off."""
        self._patches = patches
        base = getattr(amp, "LossScaler", None)
        if base is not None:
            for kind in _below(base):
                self.watch(kind)

    def watch(self, kind: type) -> None:
        """Patch a class of scalers."""
        if kind in self._seen or self._patches is None:
            return
        self._seen.add(kind)
        for name, make in (("scale", self._scale), ("unscale", self._unscale), ("adjust", self._adjust)):
            if name in vars(kind):
                self._patches.wrap(kind, name, make)

    def _scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scale(scaler: Any, inputs: Any) -> Any:
            if not self.paused:
                self._listener.on_scale(_scale_of(scaler))
            return original(scaler, inputs)

        return scale

    def _unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def unscale(scaler: Any, inputs: Any) -> Any:
            if not self.paused and isinstance(inputs, (tuple, list)):
                self._listener.on_unscale(_scale_of(scaler))
            return original(scaler, inputs)

        return unscale

    def _adjust(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def adjust(scaler: Any, grads_finite: Any) -> Any:
            if not self.paused:
                self._listener.on_adjust(scaler, bool(grads_finite))
            return original(scaler, grads_finite)

        return adjust


def scale_value(scaler: Any) -> Any:
    """Return the scale of an amp scaler, or of a loss-scale update cell; None where it has none."""
    for name in ("scale_value", "loss_scale_value", "scale_sense"):
        found = getattr(scaler, name, None)
        if found is not None:
            return found
    return None


def of_sens(sens: Any, cell: Any) -> Scale | None:
    """Return the scale that backward was started with; None when it is 1 everywhere."""
    if not isinstance(sens, ms.Tensor) or not sens.size:
        return None
    value = float(sens.asnumpy().reshape(-1)[0])
    manager = getattr(cell, "loss_scaling_manager", None)
    if value == 1.0 and manager is None:
        return None
    kind = type(manager if manager is not None else cell).__name__
    return Scale(value=value, kind=kind, in_loss=False, scaler=manager)


def _scale_of(scaler: Any) -> Scale:
    return Scale(value=_now(scale_value(scaler)), kind=type(scaler).__name__, scaler=scaler)


def _now(value: Any) -> Any:
    """Return the scale as a number as it is now: scalers change theirs in place."""
    if isinstance(value, ms.Tensor):
        return float(value.asnumpy().reshape(-1)[0])
    return float(value) if isinstance(value, (int, float)) else 1.0


def _below(kind: type) -> list[type]:
    return [each for sub in kind.__subclasses__() for each in (sub, *_below(sub))]
