"""Calls on `torch.amp.GradScaler` beside `step`, and `clip_grad_value_`: who scaled, unscaled, updated, loaded, asked.

Only notes are taken: every call goes through unchanged. `attach` patches the class; the undo puts it back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch


class ScalerListener(Protocol):
    """What wants to know of these calls."""

    def made(self, scaler: Any) -> None: ...
    def scaled(self, scaler: Any, outputs: Any) -> None: ...
    def unscaled(self, scaler: Any, optimizer: Any) -> None: ...
    def updated(self, scaler: Any) -> None: ...
    def loaded(self, scaler: Any) -> None: ...
    def asked(self, scaler: Any) -> None: ...
    def clipping_values(self, parameters: Any) -> None: ...


def attach(listener: ScalerListener, fail: Callable[[str], None]) -> Callable[[], None]:
    """Tell the listener, after each call has succeeded (before it, for clipping).

    Args:
        listener: told of each call.
        fail: told when it raises; it is told nothing more then.

    Returns:
        The undo.
    """
    scaler, alive = torch.amp.GradScaler, [True]

    def safely(tell: Callable[..., None]) -> Callable[..., None]:
        def told(*args: Any) -> None:
            if not alive or torch.compiler.is_compiling():
                return
            try:
                tell(*args)
            except Exception as error:
                alive.clear()
                fail(f"calls on GradScaler are no longer followed after an internal error: {error!r}")

        return told

    undos = [
        _after(scaler, "__init__", safely(lambda self, _args, _result: listener.made(self))),
        _after(scaler, "scale", safely(lambda self, _args, result: listener.scaled(self, result))),
        _after(scaler, "unscale_", safely(lambda self, args, _result: listener.unscaled(self, *args[:1]))),
        _after(scaler, "update", safely(lambda self, _args, _result: listener.updated(self))),
        _after(scaler, "load_state_dict", safely(lambda self, _args, _result: listener.loaded(self))),
        _after(scaler, "get_scale", safely(lambda self, _args, _result: listener.asked(self))),
    ]
    clips = (torch.nn.utils, torch.nn.utils.clip_grad)
    undos += [_before(owner, "clip_grad_value_", safely(listener.clipping_values)) for owner in clips]

    def undo() -> None:
        alive.clear()
        for each in reversed(undos):
            each()

    return undo


def _after(owner: Any, name: str, tell: Callable[..., None]) -> Callable[[], None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        tell(self, (*args, *kwargs.values()), result)
        return result

    return _put(owner, name, original, method)


def _before(owner: Any, name: str, tell: Callable[[Any], None]) -> Callable[[], None]:
    original = getattr(owner, name)

    @functools.wraps(original)
    def function(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(parameters, (torch.Tensor, list, tuple)):
            parameters = list(parameters)  # a generator can be read only once
        tell(parameters)
        return original(parameters, *args, **kwargs)

    return _put(owner, name, original, function)


def _put(owner: Any, name: str, original: Any, replacement: Any) -> Callable[[], None]:
    setattr(owner, name, replacement)

    def undo() -> None:
        if getattr(owner, name) is replacement:  # somebody may have patched on top of us: then leave theirs
            setattr(owner, name, original)

    return undo
