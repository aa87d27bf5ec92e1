"""Calls of optimizers: of mindspore.nn, experimental.optim and mint.optim, and of what derives from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hypocenter.tap.mindspore.names import optimizer_classes
from hypocenter.tap.mindspore.patches import Patches


class UpdateListener(Protocol):
    """What is told of updates."""

    def before_update(self, optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any] | None: ...
    def after_update(self, optimizer: Any) -> None: ...


class UpdateTap:
    """Tells of the outermost call of an optimizer (one may wrap another).

    Attributes:
        paused: nothing is told.
        current: the optimizer that updates now.
    """

    def __init__(self, listener: UpdateListener) -> None:
        self._listener = listener
        self.paused = False
        self.current: Any = None

    def attach(self, patches: Patches) -> None:
        """Patch the call of optimizers; `patches` takes it off."""
        for kind in optimizer_classes():
            patches.wrap(kind, "__call__", self._called)

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.paused or self.current is not None or not args:
                return original(optimizer, *args, **kwargs)
            given = args[0]
            gradients = list(given) if isinstance(given, (tuple, list)) else [given]
            self.current = optimizer
            try:
                used = self._listener.before_update(optimizer, gradients)
                if used is None:  # refused
                    return True
                if used is not gradients:
                    args = (tuple(used) if isinstance(given, (tuple, list)) else used[0], *args[1:])
                found = original(optimizer, *args, **kwargs)
            finally:
                self.current = None
            self._listener.after_update(optimizer)
            return found

        return __call__


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the optimizer's parameters in the order of its gradients."""
    return list(getattr(optimizer, "parameters", ()) or ())
