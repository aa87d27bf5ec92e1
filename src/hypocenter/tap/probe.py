"""`hypocenter.probe(x, "after layer_norm")`: a value inside a forward in, its Reading out, the value left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

import torch
from torch import Tensor, nn

from hypocenter.nouns import Phase, Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.names import NameMap, class_name
from hypocenter.tap.reducer import Reducer
from hypocenter.tap.tree import flatten

MAX_FRAMES = 64  # callers looked at for the module that a probe stands in

T = TypeVar("T")

_active: ProbeTap | None = None


def record_probe(value: T, label: str) -> T:
    """Record the tensors in `value` under `<module>.<label>`, port `probe`, and their gradients under `grad_probe`.

    Returns `value` itself. Without an active session, outside a training micro-batch, and inside torch.compile it does
    nothing else.
    """
    if torch.compiler.is_compiling() or _active is None:
        return value
    _active.record(value, label, sys._getframe(1))
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    site: str
    port: str
    module: str
    call: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    place: _Place
    phase: Phase
    order: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    ticket: int
    recompute: bool = False


class ProbeTap:
    """Collects what `record_probe` is given while active. The reducer must not be shared with another tap."""

    def __init__(self, names: NameMap, reducer: Reducer, clock: Clock, warn: Callable[[str], None]) -> None:
        self._names, self._reducer, self._clock, self._warn = names, reducer, clock, warn
        self._pending: list[_Pending] = []
        self._calls: dict[tuple[str, bool, int], int] = {}
        self._has_failed = False

    def attach(self) -> Callable[[], None]:
        """Make this the active one; call the result to take it away."""
        global _active
        _active = self

        def undo() -> None:
            global _active
            if _active is self:
                _active = None

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
        """Everything probed since the last call, in execution order, as readings of `step`."""
        pending, self._pending = self._pending, []
        self._calls.clear()
        if not pending:
            return []
        try:
            summaries = self._reducer.drain()
        except Exception as error:
            self._fail(error)
            return []
        return [
            Reading(
                step=step,
                microbatch=p.place.microbatch,
                phase=p.phase,
                site=p.place.site,
                port=p.place.port,
                order=p.order,
                call=p.place.call,
                dtype=str(p.dtype).removeprefix("torch."),
                shape=p.shape,
                summary=summaries[p.ticket],
                module=p.place.module,
                recompute=p.recompute,
            )
            for p in pending
        ]

    def _record(self, value: object, label: str, frame: FrameType | None) -> None:
        name, kind = self._module_around(frame)
        site = f"{name}.{label}" if name else label
        recompute = torch._C._current_graph_task_id() != -1
        key = (site, recompute, self._clock.microbatch)
        call = self._calls[key] = self._calls.get(key, -1) + 1
        for port, tensor in flatten(value, "probe"):
            place = _Place(site=site, port=port, module=kind, call=call, microbatch=self._clock.microbatch)
            self._add(tensor, place, "forward", recompute)
            # A recompute's graph is walked backward in reentrant checkpointing only, whose true forward has no graph.
            if tensor.requires_grad and not tensor.is_leaf:
                grad_place = _Place(site=site, port=f"grad_{port}", module=kind, call=call, microbatch=place.microbatch)
                tensor.register_hook(self._grad_hook(grad_place))

    def _grad_hook(self, place: _Place) -> Callable[[Tensor | None], None]:
        def on_grad(grad: Tensor | None) -> None:
            if grad is not None and _active is self and not self._has_failed:
                try:
                    self._add(grad, place, "backward", recompute=False)
                except Exception as error:
                    self._fail(error)

        on_grad.__torch_unserializable__ = True  # type: ignore[attr-defined]  # no warning when the user saves the tensor
        return on_grad

    def _add(self, tensor: Tensor, place: _Place, phase: Phase, recompute: bool) -> None:
        with torch.no_grad():
            ticket = self._reducer.add(tensor)
        if ticket is not None:
            self._pending.append(
                _Pending(
                    place=place,
                    phase=phase,
                    order=self._clock.next_order(),
                    dtype=tensor.dtype,
                    shape=tuple(tensor.shape),
                    ticket=ticket,
                    recompute=recompute,
                )
            )

    def _module_around(self, frame: FrameType | None) -> tuple[str, str]:
        """(name, class) of the innermost named module whose method called the probe; empty outside every module."""
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code.co_argcount:
                values: Mapping[str, object] = frame.f_locals
                owner = values.get(code.co_varnames[0])
                if isinstance(owner, nn.Module) and (name := self._names.module_name(owner)) is not None:
                    return name, class_name(owner)
            frame = frame.f_back
        return "", ""

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._warn(f"probes are not recorded any more: {error!r}")
