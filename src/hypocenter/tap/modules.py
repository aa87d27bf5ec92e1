"""Level `modules` in eager mode: inputs and outputs of every module call and their gradients, as Readings.

Every module call is heard from inside `Module.__call__` (`own_frame`), also of modules added later; gradients come from
tensor hooks set on the values themselves. Full-backward hooks are never used: they change gradients bitwise and break
in-place code. A gradient reading is of the whole gradient of that value, from all its uses.
"""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading, Summary
from hypocenter.tap.clock import Clock
from hypocenter.tap.compile_guard import inside_compiled_call, is_export, never_compile
from hypocenter.tap.frames import Frame, frames_of
from hypocenter.tap.names import NameMap, class_name, unwrap, wrapped_attribute
from hypocenter.tap.own_frame import BESIDE_TORCH, RAISED, OwnFrame
from hypocenter.tap.reducer import Reducer
from hypocenter.tap.site import Site
from hypocenter.tap.sites import Sites
from hypocenter.tap.spread.activations import SpreadOfActivations
from hypocenter.tap.spread.where import Where
from hypocenter.tap.tree import flatten
from hypocenter.tap.user_code import is_graph_taken
from hypocenter.tap.wanted import is_wanted
from hypocenter.tap.weakly import Ref

MAX_PORTS = 32  # tensors of one argument or output that are read; a KV cache has hundreds, none made by this module
MAX_PENDING = 200_000  # readings of one step; python metadata of about 100 MB

ORDER = operator.attrgetter("order")  # of readings

_NOTHING = (type(None), bool, int, float, str)  # most keyword arguments: no tensor inside, no need to walk

_set_grad_enabled = torch._C._set_grad_enabled
_graph_task_id = torch._C._current_graph_task_id
_n_dispatch_modes = torch._C._len_torch_dispatch_stack
_functorch_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


class Keep(Protocol):
    """Is given every value that is read (level `tensors`), while it is there, except those of a recompute."""

    def keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Tensor) -> None:
        """Copy what is to be kept, as the tensor may change or go at once. Must not raise."""
        ...


class _Pending:
    """A reading whose summary is still on the device."""

    __slots__ = (
        "call", "dtype", "microbatch", "order", "phase", "placement", "port", "recompute", "shape", "site", "ticket",
    )  # fmt: skip
    phase: Phase

    def __init__(
        self, site: Site, phase: Phase, port: str, order: int, call: int, microbatch: int, seen: _Seen
    ) -> None:
        self.site, self.phase, self.port, self.order = site, phase, port, order
        self.call, self.microbatch = call, microbatch
        self.ticket, self.dtype, self.shape = seen.ticket, seen.dtype, seen.shape
        self.placement = seen.where.placement if seen.where is not None else ""
        self.recompute = False


class _Seen:
    """A tensor that was summarised, and the hook on its gradient. Valid while the tensor lives and was not written to.

    One hook serves all modules that made or took the tensor, in `places`: (site, port, call, step, micro-batch).
    """

    __slots__ = ("dtype", "places", "ref", "shape", "tap", "ticket", "version", "where")
    __torch_unserializable__ = True  # torch would warn when the user saves the tensor that carries this hook

    def __init__(self, tap: ModuleTap, tensor: Tensor, version: int, ticket: int | None, where: Where | None) -> None:
        self.tap, self.ref, self.version, self.ticket = tap, Ref(tensor), version, ticket
        self.where = where
        self.dtype = tensor.dtype
        self.places: list[tuple[Site, str, int, int, int]] | None = None
        try:
            self.shape = tensor.shape
        except RuntimeError:  # a nested tensor has none
            self.shape = torch.Size()

    def __call__(self, grad: Tensor | None) -> None:
        self.tap._on_grad(self, grad)


class ModuleTap:
    """Reads module inputs, outputs and their gradients while `enabled`; costs one test per call otherwise.

    `collect` gives the readings of a step. The reducer must not be shared with one who drains it in between.
    """

    def __init__(
        self, names: NameMap, reducer: Reducer, clock: Clock, config: Config, warn: Callable[[str], None]
    ) -> None:
        self.enabled = False
        self.keeper: Keep | None = None
        self.spread: SpreadOfActivations | None = None
        self._n_open = 0
        self._sites = _ModuleSites(names, config)
        self._reducer, self._clock, self._warn = reducer, clock, warn
        self._seen: dict[int, _Seen] = {}
        self._pending: list[_Pending] = []
        self._leaf_handles: list[Any] = []
        self._recent: deque[list[Reading]] = deque(maxlen=2)
        self._n_frames = config.frames
        self._warned: set[str] = set()

    def attach(self) -> Callable[[], None]:
        """Listen to every module call; returns the undo. Set `enabled` to start."""
        for each in (ModuleTap._begin, ModuleTap._end, *BESIDE_TORCH):
            never_compile(each)
        calls = OwnFrame(nn.Module._wrapped_call_impl, self._begin)
        calls.listen()

        def undo() -> None:
            self.enabled = False
            self._forget()
            calls.stop()

        return undo

    def collect(self, step: int) -> list[Reading]:
        """Return all that was read since the last call, in execution order, as readings of `step`. Waits once."""
        pending, self._pending = self._pending, []
        self._n_open = 0
        self._forget()
        try:
            summaries = self._reducer.drain()
        except Exception as error:
            self._fail(error)
            return []
        readings = [_reading(step, p, summaries[p.ticket]) for p in pending if p.ticket is not None]
        readings.sort(key=ORDER)
        self._recent.append(readings)
        return readings

    def forget(self) -> None:
        """Drop what was read since the last call of `collect`; calls are counted from 0 again."""
        self._pending = []
        self._forget()
        self._sites.forget_calls()

    def frames(self) -> tuple[Frame, ...]:
        """Return the last `config.frames` module calls that were collected, oldest first."""
        return frames_of([reading for readings in self._recent for reading in readings], self._n_frames)

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> Callable[[Any], None] | None:
        if not self.enabled or not self._clock.recording or inside_compiled_call() is not None:
            return None
        try:
            site = self._sites.of(module)
            if site.wanted and (site.outer is None or not site.outer.open) and self._enter(site, args, kwargs):
                return functools.partial(self._end, site)
        except Exception as error:
            self._fail(error)
        return None

    def _end(self, site: Site, output: Any) -> None:
        try:
            self._leave(site, output)
        except Exception as error:
            self._fail(error)

    def _enter(self, site: Site, args: Any, kwargs: Mapping[str, Any]) -> bool:
        if is_graph_taken() or _functorch_level() is not None or len(self._pending) > MAX_PENDING:
            return False
        recompute = _graph_task_id() != -1
        if self.spread is not None and self._n_open == 0 and not recompute:
            self.spread.begin(args, kwargs)
        self._n_open += 1
        call = site.next_call((self._clock.step, self._clock.forward_microbatch), recompute)
        wants_hooks = not (recompute and site.has_grad_hooks)
        site.open.append((call, recompute, wants_hooks))
        self._take(site, "in", enumerate(args), call, recompute, wants_hooks)
        if kwargs:
            self._take(site, "in", kwargs.items(), call, recompute, wants_hooks)
        return True

    def _leave(self, site: Site, output: Any) -> None:
        if not site.open:  # forgotten since: the step was given up
            return
        call, recompute, wants_hooks = site.open.pop()
        self._n_open = max(0, self._n_open - 1)
        if output is RAISED:
            return
        values = ((0, output),) if isinstance(output, Tensor) else _items(output)
        self._take(site, "out", values, call, recompute, wants_hooks)

    def _take(
        self, site: Site, side: str, values: Iterable[tuple[Any, Any]], call: int, recompute: bool, wants_hooks: bool
    ) -> None:
        was_grad_enabled = torch.is_grad_enabled()
        _set_grad_enabled(False)
        try:
            for key, value in values:
                if isinstance(value, Tensor):
                    self._read(site, f"{side}[{key}]", value, call, recompute, wants_hooks)
                elif not isinstance(value, _NOTHING):
                    for port, tensor in flatten(value, f"{side}[{key}]")[:MAX_PORTS]:
                        self._read(site, port, tensor, call, recompute, wants_hooks)
        finally:
            _set_grad_enabled(was_grad_enabled)

    def _read(self, site: Site, port: str, tensor: Tensor, call: int, recompute: bool, wants_hooks: bool) -> None:
        clock = self._clock
        microbatch = clock.microbatch if clock.chunk is None else clock.forward_microbatch
        seen = self._known(tensor)
        if seen is None:
            spread = self.spread
            where = self._where(spread, site, port, tensor) if spread is not None and spread.is_on else None
            seen = self._summarise(tensor, where)
        pending = _Pending(site, "forward", port, clock.next_order(), call, microbatch, seen)
        pending.recompute = recompute
        self._pending.append(pending)
        if self.keeper is not None and not recompute:
            self._keep(site, port, call, microbatch, tensor)
        if wants_hooks and tensor.requires_grad:
            if seen.places is None:
                seen.places = []
                handle = tensor.register_hook(seen)
                if tensor.is_leaf:  # it outlives the graph, and would collect one hook a step
                    self._leaf_handles.append(handle)
            seen.places.append((site, f"grad_{port}", call, clock.step, microbatch))
            site.has_grad_hooks = site.has_grad_hooks or not recompute

    def _known(self, tensor: Tensor) -> _Seen | None:
        """Return what is known of this very tensor, if it was seen and was not written to since; else None.

        The object is compared, not its address: freed memory is used again within the step, in backward all the time.
        """
        seen = self._seen.get(id(tensor))
        if seen is None or seen.ref() is not tensor:
            return None
        return seen if seen.version == (-1 if tensor.is_inference() else tensor._version) else None

    def _summarise(self, tensor: Tensor, where: Where | None) -> _Seen:
        ticket = self._ticket(tensor, where)
        version = -1 if tensor.is_inference() else tensor._version
        seen = self._seen[id(tensor)] = _Seen(self, tensor, version, ticket, where)
        return seen

    def _where(self, spread: SpreadOfActivations, site: Site, port: str, tensor: Tensor) -> Where | None:
        module = site.ref()
        return spread.of(unwrap(module) if module is not None else None, port.partition("[")[0], tensor)

    def _ticket(self, tensor: Tensor, where: Where | None) -> int | None:
        try:
            if _n_dispatch_modes() == 0:
                return self._reducer.add(tensor) if where is None else self._reducer.add(tensor, where)
            with _disable_current_modes():  # selective checkpointing and the op tap must not see our operators
                return self._reducer.add(tensor) if where is None else self._reducer.add(tensor, where)
        except Exception as error:  # one odd tensor is no reason to stop reading the others
            kind = f"{type(tensor).__name__} of {tensor.dtype}"
            self._warn_once(kind, f"a {kind} cannot be summarised and is left out: {error!r}")
            return None

    def _keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Tensor) -> None:
        if self.keeper is not None:
            with _disable_current_modes():
                self.keeper.keep(site, port, call, microbatch, tensor)

    def _on_grad(self, seen: _Seen, grad: Tensor | None) -> None:
        if not self.enabled or grad is None or len(self._pending) > MAX_PENDING:
            return
        was_grad_enabled = torch.is_grad_enabled()
        _set_grad_enabled(False)
        try:
            clock, summarised = self._clock, self._known(grad)
            if summarised is None:
                where = None if self.spread is None else self.spread.of_gradient(grad, seen.where)
                summarised = self._summarise(grad, where)
            for site, port, call, step, microbatch in seen.places or ():
                of = microbatch if step == clock.step else clock.microbatch  # a graph kept over a step: now counts
                self._pending.append(_Pending(site, "backward", port, clock.next_order(), call, of, summarised))
                if self.keeper is not None:
                    self._keep(site, port, call, of, grad)
        except Exception as error:
            self._fail(error)
        finally:
            _set_grad_enabled(was_grad_enabled)

    def _forget(self) -> None:
        self._seen.clear()
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def _fail(self, error: Exception) -> None:
        self.enabled = False
        self._warn_once("failed", f"module values are not recorded any more: the hook failed with {error!r}")

    def _warn_once(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            self._warn(text)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yield (key, value) of what a module returned, one level down, so that ports read out[0], out[logits]."""
    if type(value) in (tuple, list):
        return enumerate(value)
    return [(port[1:-1], tensor) for port, tensor in flatten(value)[:MAX_PORTS]]


def _reading(step: int, p: _Pending, summary: Summary) -> Reading:
    return Reading(
        step=step,
        microbatch=p.microbatch,
        phase=p.phase,
        site=p.site.name,
        port=p.port,
        order=p.order,
        call=p.call,
        dtype=str(p.dtype).removeprefix("torch."),
        shape=tuple(p.shape),
        summary=summary,
        module=p.site.module,
        names=p.site.names,
        recompute=p.recompute,
        placement=p.placement,
    )


class _ModuleSites(Sites):
    """Knows the sites of modules, also of compiled ones, which are wrappers."""

    def __init__(self, names: NameMap, config: Config) -> None:
        super().__init__(names)
        self._names, self._config = names, config

    def _names_of(self, module: nn.Module) -> tuple[str, ...]:
        return self._names.module_names(module)

    def _decide(self, module: nn.Module, names: tuple[str, ...]) -> Site:
        # Inside a compiled module no hook runs, but what goes in and comes out can be read around it.
        is_compiled = type(module).__name__ == "OptimizedModule"
        is_whole = is_compiled and not is_export(module)
        wanted = bool(names) and (is_whole or not wrapped_attribute(module)) and is_wanted(names, self._config)
        site = Site(module, names, wanted, class_name(unwrap(module)))
        if is_compiled and unwrap(module) is not module:
            self.of(unwrap(module)).outer = site
        return site
