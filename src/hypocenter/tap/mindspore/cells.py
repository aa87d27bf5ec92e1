"""Level `modules` in PyNative mode: inputs and outputs of every cell's call and their gradients, as Readings.

`Cell.__call__` is wrapped on the class, which also sees cells that are added later; gradients come from hooks on the
tensors themselves, which give back the very gradient that they got. Cells' own backward hooks are never used: they put
an operator of theirs around the cell. Inside a compiled function (`@jit`) nothing is seen, but the cell around it is.
A gradient reading is of the whole gradient of that value, from all its uses.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from mindspore import Tensor, nn  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading, Summary
from hypocenter.tap.clock import Clock
from hypocenter.tap.frames import Frame, frames_of
from hypocenter.tap.mindspore.autograd import has_gradient, in_backward, is_leaf, made_by
from hypocenter.tap.mindspore.names import NameMap, unwrap
from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.reducer import Reducer
from hypocenter.tap.mindspore.tree import flatten
from hypocenter.tap.site import Site
from hypocenter.tap.sites import Sites
from hypocenter.tap.wanted import is_wanted

MAX_PORTS = 32  # tensors of one argument or output that are read
MAX_PENDING = 200_000  # readings of one step; python metadata of about 100 MB

_Place = tuple[Site, str, int, int, int]  # site, port, call, step, micro-batch

_NOTHING = (type(None), bool, int, float, str)  # most keyword arguments: no tensor inside, no need to walk


class Keep(Protocol):
    """Is given every value that is read (level `tensors`), while it is there, except those of a recompute."""

    def keep(self, site: Site, port: str, call: int, microbatch: int, tensor: Any) -> None:
        """Copy what is to be kept, as the tensor may change or go at once. Must not raise."""
        ...


class _Pending:
    """A reading whose summary is not there yet."""

    __slots__ = ("call", "microbatch", "order", "phase", "port", "recompute", "seen", "site")
    phase: Phase

    def __init__(
        self, site: Site, phase: Phase, port: str, order: int, call: int, microbatch: int, seen: _Value
    ) -> None:
        self.site, self.phase, self.port, self.order = site, phase, port, order
        self.call, self.microbatch, self.seen = call, microbatch, seen
        self.recompute = False


class _Value:
    """A tensor that was summarised."""

    __slots__ = ("dtype", "shape", "ticket")

    def __init__(self, tensor: Any, ticket: int) -> None:
        self.ticket, self.dtype, self.shape = ticket, str(tensor.dtype).lower(), tuple(tensor.shape)


class _Seen(_Value):
    """A summarised tensor, while it lives and was not written to. One hook serves all cells that made or took it."""

    __slots__ = ("made_by", "mark", "places", "ref")

    def __init__(self, tensor: Any, ticket: int, mark: bytes | None) -> None:
        super().__init__(tensor, ticket)
        self.ref, self.mark = weakref.ref(tensor), mark
        self.made_by = made_by(tensor)
        self.places: list[_Place] | None = None  # None: it has no hook


class CellTap:
    """Reads cells' inputs, outputs and their gradients while `enabled`; costs one test per call otherwise.

    `collect` gives the readings of a step. The reducer must not be shared with one who drains it in between.
    """

    def __init__(
        self, names: NameMap, reducer: Reducer, clock: Clock, config: Config, warn: Callable[[str], None]
    ) -> None:
        self.enabled = False
        self.keeper: Keep | None = None
        self._sites = _CellSites(names, config)
        self._reducer, self._clock, self._warn = reducer, clock, warn
        self._seen: dict[int, _Seen] = {}
        self._pending: list[_Pending] = []
        self._leaf_handles: list[Any] = []
        self._recent: deque[list[Reading]] = deque(maxlen=2)
        self._n_frames = config.frames
        self._warned: set[str] = set()

    def attach(self, patches: Patches) -> Callable[[], None]:
        """Wrap the call of cells; returns what stops it (the wrapper goes with `patches`). Set `enabled` to start."""
        patches.wrap(nn.Cell, "__call__", self._around)

        def undo() -> None:
            self.enabled = False
            self._forget()

        return undo

    def collect(self, step: int) -> list[Reading]:
        """Return all that was read since the last call, in execution order, as readings of `step`. Waits once."""
        pending, self._pending = self._pending, []
        self._forget()
        try:
            summaries = self._reducer.drain()
        except Exception as error:
            self._fail(error)
            return []
        readings = [_reading(step, p, summaries[p.seen.ticket]) for p in pending]
        readings.sort(key=lambda reading: reading.order)
        self._recent.append(readings)
        return readings

    def forget(self) -> None:
        """Drop what was read since the last call of `collect`; calls are counted from 0 again."""
        self._pending = []
        self._forget()
        self._sites.forget_calls()

    def frames(self) -> tuple[Frame, ...]:
        """Return the last `config.frames` cell calls that were collected, oldest first."""
        return frames_of([reading for readings in self._recent for reading in readings], self._n_frames)

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
            site = self._before(cell, args, kwargs) if self.enabled and self._clock.recording else None
            if site is None:
                return original(cell, *args, **kwargs)
            try:
                output = original(cell, *args, **kwargs)
            except BaseException:
                if site.open:
                    site.open.pop()
                raise
            self._after(site, output)
            return output

        return __call__

    def _before(self, cell: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Site | None:
        """Begin to read a cell's call; return its Site, or None if the call is not read."""
        try:
            site = self._sites.of(cell)
            if not site.wanted or len(self._pending) > MAX_PENDING:
                return None
            recompute = in_backward()
            call = site.next_call((self._clock.step, self._clock.microbatch), recompute)
            wants_hooks = not (recompute and site.has_grad_hooks)
            site.open.append((call, recompute, wants_hooks))
            self._take(site, "in", enumerate(args), call, recompute, wants_hooks)
            if kwargs:
                self._take(site, "in", kwargs.items(), call, recompute, wants_hooks)
            return site
        except Exception as error:
            self._fail(error)
            return None

    def _after(self, site: Site, output: Any) -> None:
        if not site.open:
            return
        call, recompute, wants_hooks = site.open.pop()
        if not self.enabled:
            return
        try:
            values = ((0, output),) if isinstance(output, Tensor) else _items(output)
            self._take(site, "out", values, call, recompute, wants_hooks)
        except Exception as error:
            self._fail(error)

    def _take(
        self, site: Site, side: str, values: Iterable[tuple[Any, Any]], call: int, recompute: bool, wants_hooks: bool
    ) -> None:
        for key, value in values:
            if isinstance(value, Tensor):
                self._read(site, f"{side}[{key}]", value, call, recompute, wants_hooks)
            elif not isinstance(value, _NOTHING):
                for port, tensor in flatten(value, f"{side}[{key}]")[:MAX_PORTS]:
                    self._read(site, port, tensor, call, recompute, wants_hooks)

    def _read(self, site: Site, port: str, tensor: Any, call: int, recompute: bool, wants_hooks: bool) -> None:
        clock = self._clock
        seen = self._known(tensor)
        pending = _Pending(site, "forward", port, clock.next_order(), call, clock.microbatch, seen)
        pending.recompute = recompute
        self._pending.append(pending)
        if self.keeper is not None and not recompute:
            self.keeper.keep(site, port, call, clock.microbatch, tensor)
        if wants_hooks and has_gradient(tensor):
            if seen.places is None:
                seen.places = []
                handle = tensor.register_hook(self._hook(seen.places))
                if is_leaf(tensor):  # it outlives the graph, and would collect one hook a step
                    self._leaf_handles.append(handle)
            seen.places.append((site, f"grad_{port}", call, clock.step, clock.microbatch))
            site.has_grad_hooks = site.has_grad_hooks or not recompute

    def _known(self, tensor: Any) -> _Seen:
        """Return what is known of this very tensor if it was not written to since; else read it.

        The object is compared, not its address: freed memory is used again within the step, in backward all the time.
        """
        mark = self._reducer.mark(tensor)
        known = self._seen.get(id(tensor))
        is_same = known is not None and known.ref() is tensor and known.made_by == made_by(tensor)
        if known is not None and is_same and mark is not None and mark == known.mark:
            return known
        seen = self._seen[id(tensor)] = _Seen(tensor, self._reducer.add(tensor), mark)
        if known is not None and is_same:
            seen.places = known.places  # its hook
        return seen

    def _hook(self, places: list[_Place]) -> Callable[[Any], Any]:
        def on_gradient(gradient: Any) -> Any:
            self._on_gradient(places, gradient)
            return gradient  # MindSpore refuses None

        return on_gradient

    def _on_gradient(self, places: list[_Place], gradient: Any) -> None:
        if not self.enabled or not isinstance(gradient, Tensor) or len(self._pending) > MAX_PENDING:
            return
        try:
            clock = self._clock
            value = _Value(gradient, self._reducer.add(gradient))
            for site, port, call, step, microbatch in places:
                of = microbatch if step == clock.step else clock.microbatch  # a graph kept over a step: now counts
                self._pending.append(_Pending(site, "backward", port, clock.next_order(), call, of, value))
                if self.keeper is not None:
                    self.keeper.keep(site, port, call, of, gradient)
        except Exception as error:
            self._fail(error)

    def _forget(self) -> None:
        self._seen.clear()
        for handle in self._leaf_handles:
            handle.remove()
        self._leaf_handles.clear()

    def _fail(self, error: Exception) -> None:
        self.enabled = False
        if "failed" not in self._warned:
            self._warned.add("failed")
            self._warn(f"cells' values are not recorded any more: the tap failed with {error!r}")


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    """Yield (key, value) of what a cell returned, one level down, so that ports read out[0], out[logits]."""
    if type(value) in (tuple, list):
        return enumerate(value)
    return [(port[1:-1], tensor) for port, tensor in flatten(value)[:MAX_PORTS]]


def _reading(step: int, p: _Pending, summary: Summary) -> Reading:
    return Reading(
        step=step, microbatch=p.microbatch, phase=p.phase, site=p.site.name, port=p.port, order=p.order, call=p.call,
        dtype=p.seen.dtype, shape=p.seen.shape, summary=summary, module=p.site.module, names=p.site.names,
        recompute=p.recompute,
    )  # fmt: skip


class _CellSites(Sites):
    """Knows the sites of cells; optimizers and losses made on the way are strangers."""

    def __init__(self, names: NameMap, config: Config) -> None:
        super().__init__(names)
        self._names, self._config = names, config

    def _names_of(self, module: Any) -> tuple[str, ...]:
        return self._names.cell_names(module)

    def _decide(self, module: Any, names: tuple[str, ...]) -> Site:
        wanted = bool(names) and unwrap(module) is module and is_wanted(names, self._config)
        return Site(module, names, wanted, type(module).__name__)
