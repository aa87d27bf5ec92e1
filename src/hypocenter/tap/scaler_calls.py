"""Calls on `torch.amp.GradScaler` beside `step`, and `clip_grad_value_`: who scaled, unscaled, updated, loaded, asked.

Only notes are taken: every call goes through unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.read_again import Rebound, like_decorated, read_first


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
    """Tell the listener after each call that has succeeded (before the call, for clipping).

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
    undos.append(_before(torch.nn.utils, "clip_grad_value_", safely(listener.clipping_values)))

    def undo() -> None:
        alive.clear()
        for each in reversed(undos):
            each()

    return undo


def _after(owner: Any, name: str, tell: Callable[..., None]) -> Callable[[], None]:
    def begin(scaler: Any, *given: Any) -> Callable[[Any], None]:
        return lambda result: None if result is RAISED else tell(scaler, given, result)

    return hear(owner, name, begin)


def _before(owner: Any, name: str, tell: Callable[[Any], None]) -> Callable[[], None]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rebound | None:
        parameters, rebound = read_first(args, kwargs)
        if rebound is not None:
            tell(parameters)
        return rebound

    return hear(owner, name, begin, like=like_decorated, rebinds=("args", "kwargs"))
