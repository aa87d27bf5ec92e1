"""`hypocenter.probe(x, "after layer_norm")`: a value inside a forward in, its Reading out, the value left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.nouns import Phase, Reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.autograd import has_gradient, in_backward, is_leaf
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.reducer import Reducer
from hypocenter.tap.mindspore.tree import flatten

MAX_FRAMES = 64  # callers looked at for the cell that a probe stands in

T = TypeVar("T")

_active: ProbeTap | None = None


def record_probe(value: T, label: str) -> T:
    """Record the tensors in `value` under `<cell>.<label>`, port `probe`, and their gradients under `grad_probe`.

    Returns `value` itself. Without an active session and outside a training micro-batch it does nothing else. What is
    compiled does not call it: a probe has no place in a graph.
    """
    if _active is not None:
        _active.record(value, label, sys._getframe(1))
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    site: str
    port: str
    module: str
    call: int
    microbatch: int
    phase: Phase
    order: int
    dtype: str
    shape: tuple[int, ...]
    ticket: int
    recompute: bool


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
                step=step, microbatch=p.microbatch, phase=p.phase, site=p.site, port=p.port, order=p.order, call=p.call,
                dtype=p.dtype, shape=p.shape, summary=summaries[p.ticket], module=p.module, recompute=p.recompute,
            )
            for p in pending
        ]  # fmt: skip

    def _record(self, value: object, label: str, frame: FrameType | None) -> None:
        name, kind = self._cell_around(frame)
        site = f"{name}.{label}" if name else label
        recompute, microbatch = in_backward(), self._clock.microbatch
        key = (site, recompute, microbatch)
        call = self._calls[key] = self._calls.get(key, -1) + 1
        for port, tensor in flatten(value, "probe"):

            def add(tensor: Any, port: str, phase: Phase, recompute: bool) -> None:
                self._pending.append(
                    _Pending(
                        site=site, port=port, module=kind, call=call, microbatch=microbatch, phase=phase,
                        order=self._clock.next_order(), dtype=str(tensor.dtype).lower(), shape=tuple(tensor.shape),
                        ticket=self._reducer.add(tensor), recompute=recompute,
                    )
                )  # fmt: skip

            add(tensor, port, "forward", recompute)
            if has_gradient(tensor) and not is_leaf(tensor):
                tensor.register_hook(self._hook(add, f"grad_{port}"))

    def _hook(self, add: Callable[[Any, str, Phase, bool], None], port: str) -> Callable[[Any], Any]:
        def on_gradient(gradient: Any) -> Any:
            if gradient is not None and _active is self and not self._has_failed:
                try:
                    add(gradient, port, "backward", False)
                except Exception as error:
                    self._fail(error)
            return gradient  # MindSpore refuses None

        return on_gradient

    def _cell_around(self, frame: FrameType | None) -> tuple[str, str]:
        """(name, class) of the innermost named cell whose method called the probe; empty outside every cell."""
        for _ in range(MAX_FRAMES):
            if frame is None:
                break
            code = frame.f_code
            if code.co_argcount:
                values: Mapping[str, object] = frame.f_locals
                owner = values.get(code.co_varnames[0])
                if isinstance(owner, nn.Cell) and (name := self._names.cell_name(owner)) is not None:
                    return name, type(owner).__name__
            frame = frame.f_back
        return "", ""

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._warn(f"probes are not recorded any more: {error!r}")
