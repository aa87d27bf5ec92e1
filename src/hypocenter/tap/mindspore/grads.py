"""Micro-batches: every call of a differentiated function, however the program came by it.

In PyNative all of `value_and_grad`, `grad`, `GradOperation`, TrainOneStepCell and Model.train run forward and backward
through two functions of mindspore.ops.composite.base; these are watched, and never seen by the graph compiler. In GRAPH
mode what `value_and_grad` makes is a compiled function: where Python calls it, its loss and gradients are seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mindspore.common import api  # pyright: ignore[reportMissingImports]
from mindspore.ops.composite import base  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.tape import GradCall, random_state, tensors

_COMPILED = ("_Grad.__call__.<locals>.after_grad", "GradOperation.__call__.<locals>.after_grad")


class GradListener(Protocol):
    """What is told of micro-batches."""

    def begin_microbatch(self, call: GradCall) -> None: ...
    def forward_done(self, call: GradCall) -> None: ...
    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None: ...


class GradTap:
    """Tells of the outermost call of each differentiated function that has parameters.

    Attributes:
        paused: nothing is told.
        current: the micro-batch under way.
        in_forward: its forward runs.
    """

    def __init__(self, listener: GradListener, warn: Callable[[str], None]) -> None:
        self._listener, self._warn = listener, warn
        self.paused = False
        self.current: GradCall | None = None
        self.in_forward = False

    def attach(self, patches: Patches) -> None:
        """Patch the functions that differentiate; `patches` takes it off."""
        if not hasattr(base, "_pynative_forward_run") or not hasattr(base, "_pynative_func_grad_backward"):
            self._warn("this version of MindSpore differentiates in another way: micro-batches are not seen")
            return
        patches.wrap(base, "_pynative_forward_run", self._forward)
        patches.wrap(base, "_pynative_func_grad_backward", self._backward)
        patches.wrap(api._JitExecutor, "__call__", self._compiled)

    def _forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(fn: Any, sens_param: Any, *args: Any, **kwargs: Any) -> Any:
            if self.paused or self.current is not None:
                return original(fn, sens_param, *args, **kwargs)
            call = GradCall(number=0, batch=0, fn=fn, args=args, kwargs=kwargs, random=random_state())
            call.has_sens = bool(sens_param)
            self.current, self.in_forward = call, True
            self._listener.begin_microbatch(call)
            try:
                found = original(fn, sens_param, *args, **kwargs)
            except BaseException:
                self.current = None
                raise
            finally:
                self.in_forward = False
            call.loss, call.outputs = first_tensor(found[1]), found[1]
            self._listener.forward_done(call)
            call.outputs = None
            return found

        return forward

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(fn: Any, operation: Any, weights: Any, position: Any, has_aux: Any, *args: Any) -> Any:
            call = self.current
            if self.paused or call is None or call.fn is not fn:
                return original(fn, operation, weights, position, has_aux, *args)
            call.operation, call.position = operation, position
            try:
                found = original(fn, operation, weights, position, has_aux, *args)
            finally:
                self.current = None
            call.weights = _parameters(weights, operation, fn)
            self._listener.end_microbatch(call, _of_weights(found, operation, len(call.weights)))
            return found

        return backward

    def _compiled(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(executor: Any, *args: Any, **kwargs: Any) -> Any:
            is_ours = getattr(executor.fn, "__qualname__", "") in _COMPILED
            if not is_ours or self.paused or self.current is not None:
                return original(executor, *args, **kwargs)
            inner = _closure(executor.fn)
            call = GradCall(number=0, batch=0, fn=inner.get("fn"), args=args, kwargs=kwargs, has_value=False)
            call.operation, call.position = inner.get("grad_"), inner.get("grad_position")
            call.has_sens = bool(getattr(call.operation, "sens_param", False))
            self.current = call
            self._listener.begin_microbatch(call)
            try:
                found = original(executor, *args, **kwargs)
            finally:
                self.current = None
            has_value = bool(getattr(call.operation, "get_value", False))
            call.loss = first_tensor(found[0]) if has_value else None
            call.weights = _parameters(inner.get("weights"), call.operation, call.fn)
            gradients = found[1] if has_value or getattr(call.operation, "has_aux", False) else found
            if getattr(call.operation, "has_aux", False) and not has_value:
                gradients = found[0]
            self._listener.forward_done(call)
            self._listener.end_microbatch(call, _of_weights(gradients, call.operation, len(call.weights)))
            return found

        return __call__


def first_tensor(value: Any) -> Any:
    """Return the loss among what a function returned: the first tensor, or None."""
    return next(iter(tensors(value)), None)


def _parameters(weights: Any, operation: Any, fn: Any) -> tuple[Any, ...]:
    if not getattr(operation, "get_by_list", False):
        return ()
    if weights is None:
        return tuple(fn.trainable_params()) if hasattr(fn, "trainable_params") else ()
    return tuple(weights) if isinstance(weights, (tuple, list)) else (weights,)


def _of_weights(found: Any, operation: Any, n: int) -> list[Any]:
    """Return the gradients of the parameters among what backward returned: alone, or after those of inputs."""
    if not n:
        return []
    if getattr(operation, "get_by_position", False) or getattr(operation, "get_all", False):
        found = found[1] if isinstance(found, (tuple, list)) and len(found) == 2 else ()
    flat = list(found) if isinstance(found, (tuple, list)) else [found]
    return flat if len(flat) == n else []


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}
