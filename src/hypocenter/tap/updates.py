"""Backward, clipping, loss scaling and optimizer steps: where a micro-batch and a step begin and end.

Calls of `torch.autograd.backward`, `torch.nn.utils.clip_grad_norm_` and of `torch.amp.GradScaler` are heard from inside
their own frames (`own_frame`), what goes straight to autograd's engine at its door (`engine_calls`); optimizers are
seen through torch's global step hooks. `detach` undoes everything.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

import torch
import torch.optim.optimizer as optimizer_hooks
from torch.autograd.graph import GradientEdge

from hypocenter.tap.engine_calls import hear_engine
from hypocenter.tap.frame_variables import variables_of
from hypocenter.tap.grad_scaler import TorchScaler, found_inf_riders, gradients_of, is_unscaled, torch_found_inf
from hypocenter.tap.own_frame import RAISED, hear, leave_out, passed_over
from hypocenter.tap.read_again import Rebound, like_decorated, read, read_first
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, Unscaling

_functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_graph_task: Callable[[], int] = torch._C._current_graph_task_id  # of the backward that this thread runs in; -1: none


class UpdateListener(Protocol):
    """What wants to know about backward and updates (the session)."""

    paused: bool

    def before_backward(
        self, roots: list[torch.Tensor | GradientEdge], seeds: list[Any], retain_graph: bool
    ) -> None: ...
    def after_backward(self) -> None: ...
    def before_gradients(
        self, roots: list[torch.Tensor | GradientEdge], inputs: list[Any], seeds: list[Any], retain_graph: bool
    ) -> bool: ...
    def after_gradients(self, gradients: list[tuple[torch.Tensor, torch.Tensor]]) -> None: ...
    def before_clip(self, parameters: list[torch.Tensor], max_norm: float) -> None: ...
    def before_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def in_backward(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_evaluation(self) -> None: ...
    def after_evaluation(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_update(self, optimizer: torch.optim.Optimizer) -> None: ...
    def before_unscale(self, unscaling: Unscaling) -> None: ...
    def after_unscale(self, unscaling: Unscaling) -> None: ...
    def before_scaled_step(self, update: ScaledUpdate) -> None: ...
    def after_scaled_step(self, update: ScaledUpdate) -> None: ...
    def before_plain_step(self, update: PlainUpdate) -> None: ...
    def after_plain_step(self, update: PlainUpdate) -> None: ...


class UpdateTap:
    """Connects the listener with every way in which training runs backward and updates."""

    def __init__(self, listener: UpdateListener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], None]] = []
        self._in_scaled_step = self._in_unscale = False
        self._is_refused = False  # the plain step under way, by the user's wish
        self._found_inf: dict[str, bool] = {}  # of the scaled step under way
        self._is_found = False  # it was known before the step
        self._depth = 0
        self._inside: torch.optim.Optimizer | None = None  # of what the step is under way, unless it has raised
        self._n_again = 0  # calls of the step of a base class in it, which torch tells of as of another step
        self._outer: torch.optim.Optimizer | None = None  # whose step is under way, if others' steps are parts of it
        self._unscales: list[Any] = []  # heard of already
        self.is_compiled = False  # a step has been traced into a graph, from which nobody tells us of it
        self.is_in_closure = False  # that an optimizer was given: what it computes is checked when it is over
        self.before_rule: Callable[[torch.optim.Optimizer], None] = lambda _: None
        """Told of each torch optimizer, also one inside a scaler's or framework's step, whose gradients are final."""
        self.after_rule: Callable[[torch.optim.Optimizer], None] = lambda _: None

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        self._undo += [
            hear(torch.autograd, "backward", self._backward, like=_like_backward, rebinds=("tensors", "grad_tensors")),
            hear(
                torch.autograd, "grad", self._gradients, like=_like_grad, rebinds=("outputs", "inputs", "grad_outputs")
            ),
            hear_engine(self._engine, lambda: self._is_nested),
            hear(torch.nn.utils, "clip_grad_norm_", self._clip, like=like_decorated, rebinds=("args", "kwargs")),
            hear(torch.amp.GradScaler, "step", self._scaled_step, like=_like_scaler_step),
            hear(torch.amp.GradScaler, "unscale_", self._unscale, like=_like_of_optimizer),
            hear(torch.amp.GradScaler, "_check_inf_per_device", self._check_inf, like=_like_of_optimizer),
        ]
        self._unscales = [torch.amp.GradScaler.unscale_]
        self._undo.append(optimizer_hooks.register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.append(optimizer_hooks.register_optimizer_step_post_hook(self._after_step).remove)
        return self.detach

    def detach(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()

    def _backward(self, tensors: Any, grad_tensors: Any, retain_graph: Any, *_: Any) -> Rebound | None:
        if self._is_nested:
            return None
        self._outer = None
        self._watch_unscale()
        try:
            roots, again = read(tensors)
            seeds, seeds_again = read(grad_tensors if grad_tensors is not None else ())
        except TypeError:  # torch will say so
            return None
        self._listener.before_backward(roots, seeds + [None] * (len(roots) - len(seeds)), bool(retain_graph))
        self._depth += 1
        return Rebound(self._end_of_backward, again, None if grad_tensors is None else seeds_again)

    def _end_of_backward(self, result: Any) -> None:
        self._depth -= 1
        if result is not RAISED:
            self._listener.after_backward()

    @property
    def _is_nested(self) -> bool:
        """Whether this is inside a backward (reentrant checkpointing), or in what is our own."""
        return self._listener.paused or self._depth > 0 or _graph_task() != -1

    def _engine(
        self, tensors: Any, grad_tensors: Any, keep_graph: bool, create_graph: bool, inputs: Any, accumulate_grad: bool
    ) -> Callable[[Any], None] | None:
        """Hear a call of autograd's engine itself, as one of `backward` or `grad`."""
        if accumulate_grad:
            return self._backward(tensors, grad_tensors, keep_graph)
        others = (True, None, _functorch_level() is not None)
        return self._gradients(tensors, inputs, grad_tensors, keep_graph, create_graph, *others)

    def _gradients(
        self, outputs: Any, inputs: Any, grad_outputs: Any, retain_graph: Any, create_graph: Any, *others: Any
    ) -> Rebound | None:
        """Hear `torch.autograd.grad`: the program uses its result itself, or it is a part of its loss."""
        is_batched = others[2]  # several gradients of each input at once: none of them is for an update
        if self._is_nested or create_graph or is_batched or _functorch_level() is not None:
            return None
        keys = list(inputs) if isinstance(inputs, dict) else None
        try:
            roots, again = read(outputs)
            wanted, wanted_again = read(inputs) if keys is None else (list(inputs.values()), inputs)
            seeds, seeds_again = read(grad_outputs if grad_outputs is not None else ())
        except TypeError:  # torch will say so
            return None
        all_seeds = seeds + [None] * (len(roots) - len(seeds))
        leaves = [_leaf_at(each) for each in wanted]
        is_wanted = self._listener.before_gradients(roots, leaves, all_seeds, bool(retain_graph))
        self._depth += 1

        def end(result: Any) -> None:
            self._depth -= 1
            if is_wanted and result is not RAISED:
                given = result if keys is None else [result[key] for key in keys]
                pairs = zip(leaves, given, strict=False)
                self._listener.after_gradients([(p, g) for p, g in pairs if _are_tensors(p, g)])

        return Rebound(end, again, wanted_again, None if grad_outputs is None else seeds_again)

    def _clip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rebound | None:
        if self._listener.paused or _graph_task() != -1:
            return None
        parameters, rebound = read_first(args, kwargs)
        if rebound is not None:
            limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
            self._listener.before_clip(parameters, limit if isinstance(limit, (int, float)) else math.nan)
        return rebound

    @contextlib.contextmanager
    def scaled_step(self, update: ScaledUpdate) -> Generator[None, None, None]:
        """Tell of a scaler's step around it: what its optimizer, or a scaler inside it, does there belongs to it."""
        if self._in_scaled_step or self._listener.paused:
            yield
            return
        self._listener.before_scaled_step(update)
        self._in_scaled_step, self._found_inf, self._is_found = True, {}, bool(update.found_inf)
        try:
            yield
        finally:
            self._in_scaled_step = False
        if not update.found_inf:
            known = self._found_inf or _found_inf(update.scaler, update.optimizer, may_wait=False)
            update.found_inf.update(known)
        self._listener.after_scaled_step(update)

    def _scaled_step(self, scaler: Any, optimizer: Any, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        if self._is_deaf or "closure" in kwargs:  # which torch refuses
            return None
        update = _scaled_update(scaler, optimizer)
        if update is None:
            return None
        around = self.scaled_step(update)
        around.__enter__()
        return functools.partial(_close, around)

    def _unscale(self, scaler: Any, optimizer: Any) -> Callable[[Any], None]:
        """Tell of the user's call of `unscale_`, and of the one that `step` makes when there was none."""
        unscaling = None if self._is_deaf else self._unscaling(scaler, optimizer)
        if unscaling is not None:
            self._listener.before_unscale(unscaling)
            self._in_unscale = True
        return functools.partial(self._end_of_unscale, scaler, optimizer, unscaling)

    def _end_of_unscale(self, scaler: Any, optimizer: Any, unscaling: Unscaling | None, result: Any) -> None:
        if unscaling is None:
            if result is not RAISED:
                self._note_found_inf(scaler, optimizer)
            return
        self._in_unscale = False
        if result is not RAISED:
            found = _found_inf(scaler, optimizer, may_wait=False)
            unscaling.has_overflowed = any(found.values()) if found else None
            self._listener.after_unscale(unscaling)

    def _check_inf(self, scaler: Any, optimizer: Any) -> Callable[[Any], None]:
        """Read what a fused optimizer's step found, which takes the scale out and skips in its own kernel."""
        return lambda result: None if result is RAISED else self._note_found_inf(scaler, optimizer)

    @property
    def _is_deaf(self) -> bool:
        return self._listener.paused or self._in_scaled_step or torch.compiler.is_compiling()

    def _note_found_inf(self, scaler: Any, optimizer: Any) -> None:
        """Read what was found before the optimizer's kernels are queued, as the check has only just waited."""
        if self._in_scaled_step and not self._is_found:
            self._found_inf = _found_inf(scaler, optimizer, may_wait=True)

    def _unscaling(self, scaler: Any, optimizer: Any) -> Unscaling | None:
        """Describe a call of `unscale_`; None if the scaler is off, has done so already, or is inside another call."""
        try:
            if self._in_unscale or not scaler.is_enabled() or is_unscaled(scaler, optimizer):
                return None
            return Unscaling(scaler=scaler, optimizer=optimizer, gradients=gradients_of(optimizer))
        except Exception:  # this is the user's call
            return None

    def _watch_unscale(self) -> None:
        """Listen to scalers with an `unscale_` of their own (FSDP's), whose classes may be made at any time."""
        for kind in _subclasses(torch.amp.GradScaler):
            unscale = vars(kind).get("unscale_")
            if callable(unscale) and unscale not in self._unscales:
                self._undo.append(hear(kind, "unscale_", self._unscale, like=_like_of_optimizer))
                self._unscales.append(vars(kind)["unscale_"])

    @contextlib.contextmanager
    def plain_step(self, update: PlainUpdate) -> Generator[None, None, None]:
        """Tell of the step of a framework's own optimizer around it; a torch optimizer updates copies in there."""
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
        if torch.compiler.is_compiling():  # the first thing: whatever is read here, the graph would be guarded by
            self.is_compiled = True
            return None
        if self._is_refused:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        if self._listener.paused:
            return None
        if _graph_task() != -1:  # from a hook on a gradient: the backward as a whole is the update
            self._listener.in_backward(optimizer)
            return None
        if self._inside is optimizer and _n_under_way(optimizer) > 1:
            self._n_again += 1
            return None
        self._inside, self._n_again = optimizer, 0
        if self._in_scaled_step or self._is_part(optimizer):
            self.before_rule(optimizer)
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer itself
        if closure is None or not callable(closure):
            self._outer = optimizer
            self._listener.before_update(optimizer)
            self.before_rule(optimizer)
            return None

        watched = self._evaluated(optimizer, closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _evaluated(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Wrap a closure so that each of its calls is told of as an evaluation. LBFGS calls it many times per update.

        The first one's gradients are what the update starts from. Before each later one the optimizer moves parameters.
        """
        is_later = False

        @passed_over
        def watched() -> Any:
            nonlocal is_later
            was_later, is_later = is_later, True
            if was_later:
                self._listener.before_evaluation()
            self.is_in_closure = True
            try:
                result = closure()
            except BaseException as error:
                leave_out(error)
                self.is_in_closure = False
                if was_later:  # the step hook after it will not be called
                    self._listener.after_update(optimizer)
                raise
            self.is_in_closure = False
            if was_later:
                self._listener.after_evaluation(optimizer)
            else:
                self._listener.before_update(optimizer)
                self.before_rule(optimizer)
            return result

        return functools.update_wrapper(watched, closure)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._listener.paused or _graph_task() != -1:
            return
        if self._n_again and self._inside is optimizer:
            self._n_again -= 1
            return
        self._inside = None
        self.after_rule(optimizer)
        if not self._in_scaled_step and not self._is_part(optimizer):
            self._outer = None
            self._listener.after_update(optimizer)

    def _is_part(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether it steps inside the step of one that holds all its parameters, so they are one update."""
        if self._outer is None or self._outer is optimizer:
            return False
        held = {id(parameter) for parameter in _parameters_of(self._outer)}
        return all(id(parameter) in held for parameter in _parameters_of(optimizer))


_STEP = getattr(torch.optim.Optimizer.profile_hook_step(lambda _: None), "__code__", None)  # torch's, around any step


def _n_under_way(optimizer: torch.optim.Optimizer) -> int:
    """Return how many steps of this optimizer are under way: a class's own, and those of its base classes."""
    n, frame = 0, sys._getframe(1)
    while frame is not None:
        n += frame.f_code is _STEP and variables_of(frame).get("self") is optimizer
        frame = frame.f_back
    return n


def _parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _leaf_at(wanted: Any) -> Any:
    """Return the tensor whose gradient is asked for, also where it is named by its place in the graph."""
    return getattr(wanted.node, "variable", wanted) if isinstance(wanted, GradientEdge) else wanted


def _are_tensors(*given: Any) -> bool:
    return all(isinstance(each, torch.Tensor) for each in given)


def _close(around: contextlib.AbstractContextManager[None], result: Any) -> None:
    around.__exit__(*(sys.exc_info() if result is RAISED else (None, None, None)))


def _like_backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None: ...
def _like_grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: Any = False,
    only_inputs: Any = True,
    allow_unused: Any = None,
    is_grads_batched: Any = False,
    materialize_grads: Any = False,
) -> None: ...
def _like_scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None: ...
def _like_of_optimizer(self: Any, optimizer: Any) -> None: ...


def _subclasses(kind: type) -> list[type]:
    found = kind.__subclasses__()
    for each in found:  # it grows
        found += each.__subclasses__()
    return found


def _scaled_update(scaler: Any, optimizer: Any) -> ScaledUpdate | None:
    """Describe a scaler's step; None if the scaler is off, or is unlike any known. Never raises."""
    try:
        if not scaler.is_enabled():
            return None
        was_unscaled, state, found = is_unscaled(scaler, optimizer), TorchScaler(scaler), dict[str, bool]()
        return ScaledUpdate(
            scaler=scaler,
            optimizer=optimizer,
            read_state=state,
            gradients=gradients_of(optimizer),
            is_unscaled=was_unscaled,
            on_device=[*state.riders, *(found_inf_riders(scaler, optimizer, found) if was_unscaled else ())],
            found_inf=found,
        )
    except Exception:
        return None


def _found_inf(scaler: Any, optimizer: Any, *, may_wait: bool) -> dict[str, bool]:
    try:
        return torch_found_inf(scaler, optimizer, may_wait=may_wait)
    except Exception:  # of a scaler that is made differently
        return {}
