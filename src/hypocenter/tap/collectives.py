"""Calls of collectives, told to listeners: torch.distributed's functions and the functional ones that DTensor uses.

The functions keep their identity: what changes is the cell in which torch's own logging decorator keeps the function
it wraps (for the few without it, the code). So names that were imported before with `from torch.distributed import
all_reduce` are followed too, `P2POp` recognises its operators, and torch.compile finds what it rewrites. Functional
collectives are looked up in their module by all who call them, and replaced there.

Not seen: reductions that C++ makes (DDP's buckets without a Python hook), graphs of torch.compile, and
`torch.ops._c10d_functional` called by name. A collective that calls another one counts once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import torch
from torch import Tensor

from hypocenter.capturing import is_capturing
from hypocenter.tap import call_site
from hypocenter.tap.collective_calls import (
    FUNCTIONAL,
    READERS,
    Given,
    Reader,
    Undo,
    Waits,
    wrap_attribute,
    wrap_in_place,
)
from hypocenter.tap.names import NameMap
from hypocenter.tap.weakly import Ref

_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE


class Call:
    """One call of a collective. `inputs` are valid in `before`, `outputs` in `done` (an all-reduce has them in both).

    op          all_reduce, reduce, reduce_scatter, all_gather, all_to_all, broadcast, send, recv, gather, scatter, barrier
    reduce      sum, avg, max, ...; "" where nothing is reduced
    group       torch's name of the process group; ranks: its global ranks
    seq         n-th call of its group since the tap was attached (send and recv: n-th to or from that peer)
    peer        global rank of the source or destination, if there is one
    dim         dimension along which all ranks' parts lie, where one tensor holds them
    site        module path where it is called: "" outside of modules, "backward" while gradients are computed
    """  # noqa: E501

    __slots__ = (
        "_locate", "_site", "dim", "group", "inputs", "is_async", "is_functional", "op", "outputs", "peer", "ranks",
        "reduce", "seq", "wants_result",
    )  # fmt: skip

    def __init__(self, op: str, given: Given, group: _Group, *, is_functional: bool, locate: Callable[[], str]) -> None:
        self.op, self.inputs, self.outputs, self.is_async = op, given.inputs, given.outputs, given.is_async
        self.group, self.ranks, self.is_functional = group.name, group.ranks, is_functional
        self.reduce = "" if given.reduce is None else _reduction(given.reduce)
        self.peer = given.peer
        if given.peer is None and given.group_peer is not None and given.group_peer < len(group.ranks):
            self.peer = group.ranks[given.group_peer]
        key = (op, self.peer) if op in ("send", "recv") else None
        self.seq = group.counts[key]
        group.counts[key] += 1
        self.dim = given.dim
        self.wants_result = False  # a listener sets it in `before` to be told of an asynchronous call's result
        self._locate, self._site = locate, None

    @property
    def site(self) -> str:
        """The module path of the caller. To be asked while the call is under way: it is read off the stack."""
        if self._site is None:
            self._site = self._locate()
        return self._site


class Listener:
    """Hears calls of collectives; must be quick. One that raises is taken out."""

    def before(self, call: Call) -> None:
        """Hear that the collective is about to begin."""

    def after(self, call: Call) -> None:
        """Hear that the collective has returned; an asynchronous one has returned only a handle."""

    def done(self, call: Call) -> None:
        """Hear that outputs are there; of an asynchronous call only with `wants_result`, once somebody has waited."""

    def failed(self, call: Call, error: BaseException) -> None:
        """Hear that the collective has raised an error (a timeout, a lost peer)."""


class _Group:
    __slots__ = ("counts", "name", "ranks", "ref")

    def __init__(self, group: Any, ranks: tuple[int, ...]) -> None:
        self.ref, self.name, self.ranks = Ref(group), _name_of(group), ranks
        self.counts: dict[object, int] = defaultdict(int)


class CollectiveTap:
    """Listens to collectives.

    Args:
        listeners: told of each call in this order.
        locate: module path of the code that runs; not asked unless a listener asks for `call.site`.
        fail: takes one line of text when a listener had to be taken out.
    """

    def __init__(
        self,
        listeners: Iterable[Listener] = (),
        *,
        locate: Callable[[], str] = lambda: "",
        fail: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._listeners = list(listeners)
        self._locate, self._fail = locate, fail
        self._inside = threading.local()
        self._groups: dict[int, _Group] = {}
        self._waits = Waits()
        self._is_on = False

    def add(self, listener: Listener) -> None:
        """Add a listener."""
        self._listeners = [*self._listeners, listener]

    def remove(self, listener: Listener) -> None:
        """Take a listener out. Results are waited for no more when nobody is left."""
        self._listeners = [each for each in self._listeners if each is not listener]

    def forget_results(self) -> None:
        """Forget results that nobody has waited for by now: the step is over."""
        self._waits.forget()

    def attach(self) -> Undo:
        """Start listening, if the program has torch.distributed. Returns the undo."""
        if not torch.distributed.is_available():
            return lambda: None
        from torch.distributed import _functional_collectives as functional
        from torch.distributed import distributed_c10d as c10d

        self._is_on = True
        undos: list[Undo] = []
        for name, (op, reader) in READERS.items():
            function = getattr(c10d, name, None)
            if function is not None:
                undos.append(wrap_in_place(function, functools.partial(self._watched, op, reader)))
        undos.append(wrap_in_place(c10d.batch_isend_irecv, self._batched))
        if hasattr(c10d, "_coalescing_manager"):
            undos.append(wrap_in_place(c10d._coalescing_manager, self._coalesced))
        for name, (op, reader) in FUNCTIONAL.items():
            if hasattr(functional, name):
                undos.append(
                    wrap_attribute(functional, name, functools.partial(self._watched, op, reader, is_functional=True))
                )

        def undo() -> None:
            self._is_on = False
            self._waits.forget()
            for each in reversed(undos):
                each()

        return undo

    def _watched(
        self, op: str, reader: Reader, original: Callable[..., Any], *, is_functional: bool = False
    ) -> Callable[..., Any]:
        is_compiling, inside = torch.compiler.is_compiling, self._inside

        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self._is_on or getattr(inside, "n", 0) or (is_functional and _is_tracing()):
                return original(*args, **kwargs)
            if is_capturing():
                return original(*args, **kwargs)
            call = self._begin(op, reader, args, kwargs, is_functional=is_functional)
            if call is None:
                return original(*args, **kwargs)
            inside.n = 1
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                self._tell(Listener.failed.__name__, call, error)
                raise
            finally:
                inside.n = 0
            self._end(call, result)
            return result

        return collective

    def _batched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Tell of each operation of a batch; where the backend makes one of them, the results come with the last."""

        def batch(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._is_on or getattr(self._inside, "n", 0):
                return original(*args, **kwargs)
            held: list[Call] = []
            self._inside.batch = held
            try:
                works = original(*args, **kwargs)
            finally:
                self._inside.batch = None
            if held:
                self._waits.after_work([w for w in works or () if w is not None], lambda: self._all_done(held))
            return works

        return batch

    def _coalesced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Tell of calls in torch's coalescing manager when it is left, as they are made then (or at `cm.wait()`)."""
        manager = contextlib.contextmanager(original)

        def coalescing(*args: Any, **kwargs: Any) -> Generator[Any, None, None]:
            if torch.compiler.is_compiling() or not self._is_on or getattr(self._inside, "n", 0):
                with manager(*args, **kwargs) as made:
                    yield made
                return
            held: list[Call] = []
            before, self._inside.batch = getattr(self._inside, "batch", None), held
            try:
                with manager(*args, **kwargs) as made:
                    yield made
            finally:
                self._inside.batch = before
            works = [work for work in getattr(made, "works", ()) if work is not None]
            if before is not None:
                before += held  # batch_isend_irecv waits for them
            elif held and works:
                self._waits.after_work(works, lambda: self._all_done(held))
            elif held:
                self._all_done(held)

        return coalescing

    def _begin(
        self, op: str, reader: Reader, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_functional: bool
    ) -> Call | None:
        try:
            given = reader(*args, **kwargs)
            group = self._group(_resolved(given.group))
            if group is None:
                return None
            call = Call(op, given, group, is_functional=is_functional, locate=self._locate)
        except Exception:  # arguments that the function itself will complain about
            return None
        self._tell("before", call)
        return call

    def _end(self, call: Call, result: Any) -> None:
        self._tell("after", call)
        if call.is_functional:
            self._end_functional(call, result)
        elif _is_coalescing(call):
            held = getattr(self._inside, "batch", None)
            if held is not None and call.wants_result:
                held.append(call)
        elif not call.is_async:
            self._tell("done", call)
        elif call.wants_result and hasattr(result, "wait"):
            self._waits.after_work([result], lambda: self._tell("done", call))

    def _end_functional(self, call: Call, result: Any) -> None:
        if not call.wants_result:
            return
        if isinstance(result, Tensor) and hasattr(result, "elem") and hasattr(result, "trigger_wait"):

            def arrived(values: Tensor) -> None:
                call.outputs = (values,)
                self._tell("done", call)

            self._waits.after_tensor(result, arrived)
        elif isinstance(result, Tensor):
            call.outputs = (result,)
            self._tell("done", call)

    def _all_done(self, calls: list[Call]) -> None:
        for call in calls:
            self._tell("done", call)

    def _tell(self, what: str, call: Call, *more: Any) -> None:
        for listener in self._listeners:
            was = getattr(self._inside, "n", 0)
            self._inside.n = 1  # what a listener does is not the program's
            try:
                getattr(listener, what)(call, *more)
            except Exception as error:
                self.remove(listener)
                self._fail(f"{type(listener).__name__} no longer listens to collectives: {error!r}")
            finally:
                self._inside.n = was

    def _group(self, group: Any) -> _Group | None:
        """Return what is known of a process group; None if this rank is no member, or the group is ours."""
        known = self._groups.get(id(group))
        if known is None or known.ref() is not group:
            from torch.distributed import distributed_c10d as c10d

            members = c10d._world.pg_group_ranks.get(group)
            if members is None:
                return None
            known = self._groups[id(group)] = _Group(group, tuple(members))
        return known


def _resolved(group: Any) -> Any:
    """Return the process group meant by what a program gives: None is the default, a mesh or name is looked up."""
    from torch.distributed import distributed_c10d as c10d

    if group is None:
        return c10d._get_default_group()
    if isinstance(group, c10d.ProcessGroup):
        return group
    if isinstance(group, str):
        return c10d._resolve_process_group(cast("Any", group))
    if isinstance(group, tuple):
        mesh, dim = cast("tuple[Any, Any]", group)
        return mesh.get_group(dim)
    return group.get_group()


def _name_of(group: Any) -> str:
    return str(getattr(group, "group_name", ""))


def _reduction(op: Any) -> str:
    return str(getattr(op, "name", None) or op).rpartition(".")[2].lower()


def _is_coalescing(call: Call) -> bool:
    """Return whether this is inside torch's coalescing manager, where operations are only noted and made later."""
    from torch.distributed import distributed_c10d as c10d

    state: dict[Any, Any] = c10d._world.pg_coalesce_state
    return bool(state) and any(_name_of(group) == call.group for group in state)


def _is_tracing() -> bool:
    """Return whether values are not real: a compiler or exporter is looking at the program."""
    return torch._C._get_dispatch_mode(_FAKE) is not None


class _Shared:
    """The one tap of this process, there while somebody listens."""

    def __init__(self) -> None:
        self.tap: CollectiveTap | None = None
        self.undo: Undo | None = None
        self.n = 0


_shared = _Shared()


def listen(listener: Listener, *, names: NameMap, fail: Callable[[str], None]) -> Undo:
    """Listen through the one tap of this process, so that each call is read once however many listen.

    Args:
        listener: told of each call.
        names: for `call.site`.
        fail: takes one line of text when a listener had to be taken out.

    Returns:
        The undo; the last one takes the tap off.
    """
    tap = _shared.tap
    if tap is None:
        tap = _shared.tap = CollectiveTap(locate=lambda: call_site.site(names), fail=fail)
        _shared.undo = tap.attach()
    tap.add(listener)
    _shared.n += 1
    is_over = False

    def undo() -> None:
        nonlocal is_over
        if is_over:
            return
        is_over = True
        tap.remove(listener)
        _shared.n -= 1
        if _shared.n == 0 and _shared.undo is not None:
            _shared.undo()
            _shared.tap = _shared.undo = None

    return undo


def forget_results() -> None:
    """Forget results in the one tap that nobody has waited for by now: they are not told of."""
    if _shared.tap is not None:
        _shared.tap.forget_results()
