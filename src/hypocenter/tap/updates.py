"""Backward, clipping, loss scaling and optimizer steps: where a micro-batch and a step begin and end.

Patches are on `torch.autograd.backward`, `torch.nn.utils.clip_grad_norm_` and `torch.amp.GradScaler`; optimizers are
seen through torch's global step hooks. Everything is undone by `detach`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.optim.optimizer as optimizer_hooks

from hypocenter.tap.scaled import (
    PlainUpdate,
    ScaledUpdate,
    Unscaling,
    gradients_of,
    is_unscaled,
    torch_found_inf,
    torch_scaler_state,
)


class UpdateListener(Protocol):
    """What wants to know about backward and updates (the session)."""

    paused: bool

    def before_backward(self, roots: list[torch.Tensor], seeds: list[Any], retain_graph: bool) -> None: ...
    def after_backward(self) -> None: ...
    def before_clip(self, parameters: list[torch.Tensor]) -> None: ...
    def before_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_unscale(self, unscaling: Unscaling) -> None: ...
    def after_unscale(self, unscaling: Unscaling) -> None: ...
    def before_scaled_step(self, update: ScaledUpdate) -> None: ...
    def after_scaled_step(self, update: ScaledUpdate) -> None: ...
    def before_plain_step(self, update: PlainUpdate) -> None: ...
    def after_plain_step(self, update: PlainUpdate) -> None: ...


class UpdateTap:
    """Attach the listener to every way in which training goes back and updates."""

    def __init__(self, listener: UpdateListener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._in_scaled_step = self._in_unscale = False
        self._is_refused = False  # the plain step under way, by the user's wish
        self._found_inf: dict[str, bool] = {}  # of the scaled step under way
        self._depth = 0
        self.before_rule: Callable[[torch.optim.Optimizer], None] = lambda _: None
        """Told of each torch optimizer, also one inside a scaler's or framework's step, whose gradients are final."""
        self.after_rule: Callable[[torch.optim.Optimizer], None] = lambda _: None

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        self._replace(torch.autograd, "backward", self._backward)
        for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
            self._replace(owner, "clip_grad_norm_", self._clip)
        self._replace(torch.amp.GradScaler, "step", self._scaled_step)
        self._replace(torch.amp.GradScaler, "unscale_", self._unscale)
        self._replace(torch.amp.GradScaler, "_check_inf_per_device", self._check_inf)
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
            self._watch_unscale()
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
        """Around a scaler's own step: what its optimizer, or a scaler inside it, does there belongs to it."""
        if self._in_scaled_step or self._listener.paused:
            yield
            return
        self._listener.before_scaled_step(update)
        self._in_scaled_step, self._found_inf = True, {}
        try:
            yield
        finally:
            self._in_scaled_step = False
        if not update.found_inf:
            known = self._found_inf or _found_inf(update.scaler, update.optimizer, may_wait=False)
            update.found_inf.update(known)
        self._listener.after_scaled_step(update)

    def _scaled_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tap = self

        def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            is_ours = not (tap._is_deaf or "closure" in kwargs)  # which torch refuses
            update = _scaled_update(self, optimizer) if is_ours else None
            if update is None:
                return original(self, optimizer, *args, **kwargs)
            with tap.scaled_step(update):
                return original(self, optimizer, *args, **kwargs)

        return step

    def _unscale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The user's own call of `unscale_`, and the one that `step` makes when there was none."""
        tap = self

        def unscale_(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            unscaling = None if tap._is_deaf else tap._unscaling(self, optimizer)
            if unscaling is None:
                result = original(self, optimizer, *args, **kwargs)
                tap._note_found_inf(self, optimizer)
                return result
            tap._listener.before_unscale(unscaling)
            tap._in_unscale = True
            try:
                result = original(self, optimizer, *args, **kwargs)
            finally:
                tap._in_unscale = False
            found = _found_inf(self, optimizer, may_wait=False)
            unscaling.has_overflowed = any(found.values()) if found else None
            tap._listener.after_unscale(unscaling)
            return result

        unscale_._hypocenter_watches = tap  # type: ignore[attr-defined]
        return unscale_

    def _check_inf(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Inside the step of a fused optimizer, which takes the scale out and skips in its own kernel."""
        tap = self

        def _check_inf_per_device(self: Any, optimizer: Any) -> Any:
            result = original(self, optimizer)
            tap._note_found_inf(self, optimizer)
            return result

        return _check_inf_per_device

    @property
    def _is_deaf(self) -> bool:
        return self._listener.paused or self._in_scaled_step or torch.compiler.is_compiling()

    def _note_found_inf(self, scaler: Any, optimizer: Any) -> None:
        """Read it before the optimizer's kernels are queued: the check of the step has only just waited."""
        if self._in_scaled_step:
            self._found_inf = _found_inf(scaler, optimizer, may_wait=True)

    def _unscaling(self, scaler: Any, optimizer: Any) -> Unscaling | None:
        """None when the scaler is off, has unscaled these already (torch says so), or this is a call inside another."""
        try:
            if self._in_unscale or not scaler.is_enabled() or is_unscaled(scaler, optimizer):
                return None
            return Unscaling(scaler=scaler, optimizer=optimizer, gradients=gradients_of(optimizer))
        except Exception:  # this is the user's call
            return None

    def _watch_unscale(self) -> None:
        """Patch scalers that have an `unscale_` of their own (FSDP's): their classes may be made at any time."""
        for kind in _subclasses(torch.amp.GradScaler):
            unscale = vars(kind).get("unscale_")
            if callable(unscale) and getattr(unscale, "_hypocenter_watches", None) is not self:
                self._replace(kind, "unscale_", self._unscale)

    @contextlib.contextmanager
    def plain_step(self, update: PlainUpdate) -> Generator[None, None, None]:
        """Around the step of a framework's own optimizer, in which a torch optimizer updates copies."""
        if self._in_scaled_step or self._listener.paused:
            yield
            return
        self._listener.before_plain_step(update)
        self._in_scaled_step, self._is_refused = True, update.is_refused
        try:
            yield
        finally:
            self._in_scaled_step = self._is_refused = False
        self._listener.after_plain_step(update)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self._is_refused:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        if self._listener.paused or torch.compiler.is_compiling():
            return None
        if self._in_scaled_step:
            self.before_rule(optimizer)
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None or not callable(closure):
            self._listener.before_update(optimizer)
            self.before_rule(optimizer)
            return None

        @functools.wraps(closure)
        def watched() -> Any:
            result = closure()
            self._listener.before_update(optimizer)
            self.before_rule(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._listener.paused or torch.compiler.is_compiling():
            return
        self.after_rule(optimizer)
        if not self._in_scaled_step:
            self._listener.after_update(optimizer)


def _subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from _subclasses(each)


def _scaled_update(scaler: Any, optimizer: Any) -> ScaledUpdate | None:
    """None: the scaler is off, or is nothing that we understand. Never raises: this is the user's step."""
    try:
        if not scaler.is_enabled():
            return None
        was_unscaled = is_unscaled(scaler, optimizer)
        return ScaledUpdate(
            scaler=scaler,
            optimizer=optimizer,
            state=torch_scaler_state(scaler),
            gradients=gradients_of(optimizer),
            is_unscaled=was_unscaled,
            found_inf=_found_inf(scaler, optimizer, may_wait=True) if was_unscaled else {},
        )
    except Exception:
        return None


def _found_inf(scaler: Any, optimizer: Any, *, may_wait: bool) -> dict[str, bool]:
    try:
        return torch_found_inf(scaler, optimizer, may_wait=may_wait)
    except Exception:  # of a scaler that is made differently
        return {}
