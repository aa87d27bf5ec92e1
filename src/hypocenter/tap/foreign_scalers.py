"""Loss scalers that do not step through `torch.amp.GradScaler.step`: apex, torch_npu, an in-house copy of GradScaler.

Nothing is imported for them. What has the methods of a GradScaler is taken for one; its state is read field by field,
and what is missing is None. A class that derives from torch's is watched from the start, or from its definition: its
first step is often the one that overflows, and torch_npu's calls nothing inherited before that. Any other class is
watched from the first moment that shows it: an instance given to `watch`, or an optimizer's step that its `step` called
(the one update that is then under way is seen as a plain one). Whatever nests inside such a step belongs to it: one
update is reported, not two.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
import torch.optim.optimizer as optimizer_hooks

from hypocenter.tap.frame_variables import self_of
from hypocenter.tap.grad_scaler import gradients_of, torch_found_inf, torch_scaler_state
from hypocenter.tap.scaled import ScaledUpdate, ScalerState

_METHODS = ("scale", "step", "update")
_FRAMES = 12  # between an optimizer's step hook and the scaler above it: wrappers of schedulers, profilers, accelerate
_TORCH = torch.amp.GradScaler


class ForeignScalers:
    """Reports steps of scalers of any class as scaled updates."""

    def __init__(self, scaled_step: Callable[[ScaledUpdate], AbstractContextManager[None]]) -> None:
        self._scaled_step = scaled_step
        self._undo: list[Callable[[], None]] = []
        self._watched: set[type] = {_TORCH}
        self._is_inside = False

    def attach(self) -> Callable[[], None]:
        """Start looking for scalers; returns the undo."""
        handle = optimizer_hooks.register_optimizer_step_pre_hook(self._before_step)
        scaler: Any = _TORCH
        for kind in _subclasses(scaler):
            self._watch_kind(kind)
        watch_kind = self._watch_kind

        def defined(cls: type, **kwargs: Any) -> None:
            super(scaler, cls).__init_subclass__(**kwargs)
            watch_kind(cls)

        own = classmethod(defined)
        scaler.__init_subclass__ = own

        def undo() -> None:
            handle.remove()
            if scaler.__dict__.get("__init_subclass__") is own:
                del scaler.__init_subclass__
            while self._undo:
                self._undo.pop()()
            self._watched = {_TORCH}

        return undo

    def watch(self, scaler: Any) -> bool:
        """Watch the steps of this scaler and of all of its class. Returns False if it is none, or watched already."""
        owner = next((kind for kind in type(scaler).__mro__ if "step" in kind.__dict__), None)
        return owner is not None and looks_like_scaler(scaler) and self._watch_kind(owner)

    def _watch_kind(self, owner: type) -> bool:
        """Watch the steps of a class of scalers, if it has a `step` of its own; return whether that is new."""
        original: Any = owner.__dict__.get("step")
        if owner in self._watched or not callable(original):
            return False
        self._watched.add(owner)
        foreign = self

        @functools.wraps(original)
        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            update = None if foreign._is_inside else update_of(self, optimizer)
            if update is None:
                return original(self, optimizer, *args, **kwargs)
            foreign._is_inside = True
            try:
                with foreign._scaled_step(update):
                    return original(self, optimizer, *args, **kwargs)
            finally:
                foreign._is_inside = False

        setattr(owner, "step", step)  # noqa: B010 (of a class that no type checker knows)

        def undo() -> None:
            if owner.__dict__.get("step") is step:
                setattr(owner, "step", original)  # noqa: B010

        self._undo.append(undo)
        return True

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling():  # the step becomes part of a graph, in which no frame can be looked at
            return
        if not self._is_inside and (scaler := scaler_above(sys._getframe(1))) is not None:
            self.watch(scaler)


def _subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def looks_like_scaler(thing: Any) -> bool:
    """Return whether this is an object with the methods of a GradScaler, and a scale that can be read."""
    kind = type(thing)
    if issubclass(kind, (torch.optim.Optimizer, torch.nn.Module)):
        return False
    has_scale = callable(getattr(kind, "get_scale", None)) or "_scale" in getattr(thing, "__dict__", ())
    return has_scale and all(callable(getattr(kind, name, None)) for name in _METHODS)


def scaler_above(frame: FrameType | None) -> Any | None:
    """Return the scaler whose `step` has led to this frame, or None."""
    for _ in range(_FRAMES):
        if frame is None:
            return None
        code = frame.f_code
        if code.co_name in ("step", "_maybe_opt_step"):
            owner = self_of(frame)
            if owner is not None and looks_like_scaler(owner):
                return owner
        frame = frame.f_back
    return None


def update_of(scaler: Any, optimizer: Any) -> ScaledUpdate | None:
    """Return the update that a scaler is about to make; None if it is off or unlike any known. Never raises."""
    try:
        if not getattr(scaler, "is_enabled", lambda: True)():
            return None
        was_unscaled, state = is_unscaled(scaler, optimizer), state_of(scaler)
        return ScaledUpdate(
            scaler=scaler,
            optimizer=optimizer,
            read_state=lambda: state,
            gradients=gradients_of(optimizer),
            is_unscaled=was_unscaled,
            found_inf=_found_inf(scaler, optimizer) if was_unscaled else {},  # else noted when it unscales
        )
    except Exception:
        return None


def state_of(scaler: Any) -> ScalerState:
    """Read the state of a GradScaler, or what can be read of one that only looks like it.

    Raises:
        ValueError: it has no scale that is a number.
    """
    is_dynamic = getattr(scaler, "_dynamic", getattr(scaler, "dynamic", True))
    is_dynamic = is_dynamic if isinstance(is_dynamic, bool) else True
    try:
        return replace(torch_scaler_state(scaler), is_dynamic=is_dynamic)  # torch_npu's may be static
    except (AttributeError, TypeError, ValueError, RuntimeError):
        pass
    scale = _number(scaler.get_scale() if callable(getattr(scaler, "get_scale", None)) else scaler._scale)
    if scale is None:
        raise ValueError(f"{type(scaler).__name__} has no scale that is a number")
    tracker, interval = _field(scaler, "growth_tracker"), _field(scaler, "growth_interval")
    return ScalerState(
        kind=type(scaler).__name__,
        scale=scale,
        is_dynamic=is_dynamic,
        growth_tracker=None if tracker is None else int(tracker),
        growth_interval=None if interval is None else int(interval),
        growth_factor=_field(scaler, "growth_factor"),
        backoff_factor=_field(scaler, "backoff_factor"),
        init_scale=_field(scaler, "init_scale"),
        min_scale=_field(scaler, "min_scale"),
    )


def is_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Return whether this optimizer's gradients have been unscaled already (`unscale_` before clipping)."""
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is None or id(optimizer) not in states:  # asked with `in`: a defaultdict must not grow
        return False
    stage = states[id(optimizer)].get("stage")
    return bool(getattr(stage, "value", stage or 0))


def _found_inf(scaler: Any, optimizer: Any) -> dict[str, bool]:
    try:
        return torch_found_inf(scaler, optimizer, may_wait=True)
    except Exception:  # of a scaler that is made differently
        return {}


def _field(scaler: Any, name: str) -> float | None:
    """Read a number from a field with or without the underscore, or from its `get_` method; else None."""
    for each in (f"_{name}", name):
        value = _number(getattr(scaler, each, None))
        if value is not None:
            return value
    getter = getattr(scaler, f"get_{name}", None)
    return _number(getter()) if callable(getter) else None


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return None
