"""Values inside a forward in, their Readings out, the values left alone: what probes of every framework share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any, ClassVar

from hypocenter.nouns import Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.frame_variables import variables_of

MAX_FRAMES = 64  # callers looked at for the module that a probe stands in


class Probes:
    """Collects what is probed while active. The reducer must not be shared with another tap.

    A framework derives from it and says what its tensors are. One of each such class is active at a time.

    Attributes:
        calls: how often each was probed since the last `collect`.
        pending: what has been probed since then, and is not collected yet.
    """

    active: ClassVar[Probes | None] = None

    def __init__(self, reducer: Any, clock: Clock, warn: Callable[[str], None]) -> None:
        self._reducer, self._clock, self._warn = reducer, clock, warn
        self.pending: list[tuple[Reading, Any]] = []  # with the ticket of its summary
        self.calls: dict[tuple[str, bool, int], int] = {}
        self._has_failed = False

    # of a framework

    def tensors(self, value: object) -> Iterable[tuple[str, Any]]:
        """Yield (port, tensor) for all tensors in a value."""
        raise NotImplementedError

    def named(self, owner: object) -> tuple[str, str] | None:
        """Return the name and class of a module that the user knows; None for anything else."""
        raise NotImplementedError

    def is_recompute(self) -> bool:
        """Return whether backward runs now, so that a forward is a recompute."""
        raise NotImplementedError

    def ticket(self, tensor: Any) -> Any | None:
        """Queue a tensor for the reducer, and return its ticket; None if nothing can be said of it."""
        return self._reducer.add(tensor)

    def dtype_of(self, tensor: Any) -> str:
        """Return the name of the tensor's format."""
        return str(tensor.dtype).lower().removeprefix("torch.")

    def hear_gradient(self, tensor: Any, hear: Callable[[Any], None]) -> None:
        """Have `hear` told of the tensor's gradient, if it will have one and is no leaf."""
        raise NotImplementedError

    # for all

    def attach(self) -> Callable[[], None]:
        """Make this the active one of its class; returns the undo."""
        kind = type(self)
        kind.active = self

        def undo() -> None:
            if kind.active is self:
                kind.active = None

        return undo

    def record(self, value: object, label: str, frame: FrameType | None) -> None:
        """Read every tensor in `value`; never raises."""
        if self._has_failed or not self._clock.recording:
            return
        try:
            self._record(value, label, frame)
        except Exception as error:
            self._fail(error)

    def collect(self, step: int) -> list[Reading]:
        """Return all that was probed since the last call, in execution order, as readings of `step`."""
        pending, self.pending = self.pending, []
        self.calls.clear()
        if not pending:
            return []
        try:
            summaries = self._reducer.drain()
        except Exception as error:
            self._fail(error)
            return []
        return [replace(row, step=step, summary=summaries[ticket]) for row, ticket in pending]

    def _record(self, value: object, label: str, frame: FrameType | None) -> None:
        name, kind = self._module_around(frame)
        site, recompute, microbatch = f"{name}.{label}" if name else label, self.is_recompute(), self._clock.microbatch
        key = (site, recompute, microbatch)
        call = self.calls[key] = self.calls.get(key, -1) + 1
        for port, tensor in self.tensors(value):
            add = functools.partial(self._add, site=site, microbatch=microbatch, call=call, module=kind)
            add(tensor, port=port, phase="forward", recompute=recompute)
            self.hear_gradient(tensor, self._hearing(functools.partial(add, port=f"grad_{port}", phase="backward")))

    def _hearing(self, add: Callable[[Any], None]) -> Callable[[Any], None]:
        def hear(gradient: Any) -> None:
            if gradient is not None and type(self).active is self and not self._has_failed:
                try:
                    add(gradient)
                except Exception as error:
                    self._fail(error)

        return hear

    def _add(self, tensor: Any, **place: Any) -> None:
        ticket = self.ticket(tensor)
        if ticket is not None:
            dtype, shape, order = self.dtype_of(tensor), tuple(tensor.shape), self._clock.next_order()
            self.pending.append((Reading(step=-1, order=order, dtype=dtype, shape=shape, **place), ticket))

    def _module_around(self, frame: FrameType | None) -> tuple[str, str]:
        """Return (name, class) of the innermost named module whose method called the probe; ("", "") outside of all."""
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code.co_argcount:
                found = self.named(variables_of(frame).get(code.co_varnames[0]))
                if found is not None:
                    return found
            frame = frame.f_back
        return "", ""

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._warn(f"probes are not recorded any more: {error!r}")
