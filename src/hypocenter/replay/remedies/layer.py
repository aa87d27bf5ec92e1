"""A layer around one module's forward that can be taken off again, in any order, and survives copying and pickling.

It sits in the module's own `forward` attribute, so names, hooks, parameters, state_dict and the class stay what they
are. It holds its module as plain data: `copy.deepcopy` and `pickle` of a model take it along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Layer:
    """Calls `wrapped(*args, **kwargs)`; subclasses do something around it.

    Args:
        module: whose forward it is.
        outermost: False for a module below the one that was asked for: it only does something when it is called on
            its own by a checkpoint's recomputation, where the outer layer is not on the stack.
    """

    def __init__(self, module: nn.Module, *, outermost: bool) -> None:
        self.module = module
        self.outermost = outermost
        self.inner: Callable[..., Any] | None = vars(module).get("forward")
        self.enabled = True

    def put_on(self) -> None:
        """Become the module's forward."""
        self.module.forward = self  # type: ignore[assignment]  # a callable object: nn.Module takes any

    def take_off(self) -> None:
        """Leave the module's forward as if this layer had never been there; what came on top of it later stays."""
        self.enabled = False
        above: Any = None
        current = vars(self.module).get("forward")
        while isinstance(current, Layer) and current is not self:
            above, current = current, current.inner
        if current is not self:
            return  # some other tool has wrapped it: it stays below, switched off
        if above is not None:
            above.inner = self.inner
        elif self.inner is not None:
            self.module.forward = self.inner  # type: ignore[assignment]
        else:
            del self.module.forward

    def wrapped(self, *args: Any, **kwargs: Any) -> Any:
        """Call the forward without this layer."""
        if self.inner is not None:
            return self.inner(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.wrapped(*args, **kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """The user's forward, whose arguments `inspect.signature` then shows."""
        return self.inner if self.inner is not None else type(self.module).forward.__get__(self.module)

    @property
    def __name__(self) -> str:
        return "forward"
