"""Backward, clipping, loss scaling and optimizer steps: where a micro-batch and a step begin and end.

Patches are on `torch.autograd.backward`, `torch.nn.utils.clip_grad_norm_` and `torch.amp.GradScaler`; optimizers are
seen through torch's global step hooks. Everything is undone by `detach`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol

import torch
import torch.optim.optimizer as optimizer_hooks

from hypocenter.tap.scaled import ScaledUpdate, gradients_of, torch_scaler_state


class UpdateListener(Protocol):
    """What wants to know about backward and updates (the session)."""

    paused: bool

    def before_backward(self, roots: list[torch.Tensor], seeds: list[Any], retain_graph: bool) -> None: ...
    def after_backward(self) -> None: ...
    def before_clip(self, parameters: list[torch.Tensor]) -> None: ...
    def before_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_scaled_step(self, update: ScaledUpdate) -> None: ...
    def after_scaled_step(self, update: ScaledUpdate) -> None: ...


class UpdateTap:
    """Attach the listener to every way in which training goes back and updates."""

    def __init__(self, listener: UpdateListener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._in_scaled_step = False
        self._depth = 0

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        self._replace(torch.autograd, "backward", self._backward)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            self._replace(owner, "clip_grad_norm_", self._clip)
        self._replace(torch.amp.GradScaler, "step", self._scaled_step)
        self._undo.append(optimizer_hooks.register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.append(optimizer_hooks.register_optimizer_step_post_hook(self._after_step).remove)
        return self.detach

    def detach(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()

    def _replace(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        replacement = functools.wraps(original)(make(original))
        setattr(owner, name, replacement)

        def undo() -> None:
            if getattr(owner, name) is replacement:  # somebody may have patched on top of us: then leave theirs
                setattr(owner, name, original)

        self._undo.append(undo)

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self._listener.paused or self._depth or torch._C._current_graph_task_id() != -1:
                return original(tensors, grad_tensors, *args, **kwargs)  # nested: reentrant checkpointing
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            seeds = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [])
            retain = bool(kwargs.get("retain_graph", args[0] if args else None))
            self._listener.before_backward(roots, seeds + [None] * (len(roots) - len(seeds)), retain)
            self._depth += 1
            try:
                result = original(tensors, grad_tensors, *args, **kwargs)
            finally:
                self._depth -= 1
            self._listener.after_backward()
            return result

        return backward

    def _clip(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_norm_(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._listener.paused and not torch.compiler.is_compiling():
                if isinstance(parameters, torch.Tensor):
                    parameters = [parameters]
                elif not isinstance(parameters, (list, tuple)) and isinstance(parameters, Iterable):
                    parameters = list(parameters)
                self._listener.before_clip(list(parameters))
            return original(parameters, *args, **kwargs)

        return clip_grad_norm_

    @contextlib.contextmanager
    def scaled_step(self, update: ScaledUpdate) -> Generator[None, None, None]:
        """Around a scaler's own step: what its optimizer does inside belongs to it."""
        self._listener.before_scaled_step(update)
        self._in_scaled_step = True
        try:
            yield
        finally:
            self._in_scaled_step = False
        self._listener.after_scaled_step(update)

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tap = self

        def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if tap._listener.paused or tap._in_scaled_step or not self.is_enabled():
                return original(self, optimizer, *args, **kwargs)
            stage = getattr(self._per_optimizer_states[id(optimizer)].get("stage"), "value", 0)
            update = ScaledUpdate(
                scaler=self,
                optimizer=optimizer,
                state=torch_scaler_state(self),
                gradients=gradients_of(optimizer),
                is_unscaled=bool(stage),
            )
            with tap.scaled_step(update):
                return original(self, optimizer, *args, **kwargs)

        return step

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._listener.paused or self._in_scaled_step or torch.compiler.is_compiling():
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None or not callable(closure):
            self._listener.before_update(optimizer)
            return None

        @functools.wraps(closure)
        def watched() -> Any:
            result = closure()
            self._listener.before_update(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not (self._listener.paused or self._in_scaled_step or torch.compiler.is_compiling()):
            self._listener.after_update(optimizer)
