"""Which taps are on: the level, its schedule, traced batches, and what is recorded of a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Reading, Summary
from hypocenter.summary.reducers.torch import TorchReducer
from hypocenter.tap.clock import Clock
from hypocenter.tap.live import LiveMode
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.ops import OpTap
from hypocenter.tap.parameters import parameter_readings
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import Node


class UntracedReducer:
    """A reducer whose own kernels are not seen by the dispatch modes that are on."""

    def __init__(self, reducer: TorchReducer) -> None:
        self._reducer = reducer

    def add(self, tensor: torch.Tensor) -> int | None:
        """Queue a tensor."""
        with _disable_current_modes():
            return self._reducer.add(tensor)

    def drain(self) -> list[Summary]:
        """Summaries by ticket."""
        with _disable_current_modes():
            return self._reducer.drain()


class Levels:
    """Switches module and op taps on and off at micro-batch boundaries, and collects their rows at updates."""

    def __init__(self, config: Config, names: NameMap, clock: Clock, warn: Callable[[str], None]) -> None:
        self._config, self._names, self._clock, self._warn = config, names, clock, warn
        self._rank = LEVELS.index(config.level)
        self._due = schedule.parse(config.schedule)
        self._params_due = schedule.parse(config.param_schedule)
        self._modules: ModuleTap | None = None
        self._ops: OpTap | None = None
        self._live: LiveMode | None = None
        self._live_on = False
        self._undo: list[Callable[[], None]] = []
        self._replay_rows: list[tuple[Node, int, str, tuple[int, ...], int, int]] = []
        self._replay_reducer = UntracedReducer(self._reducer())
        self._replay_modules: ModuleTap | None = None
        self._replay_done: list[Reading] = []

    def _reducer(self) -> TorchReducer:
        return TorchReducer(histogram=self._config.histogram, sketch=self._config.sketch)

    def attach(self) -> Callable[[], None]:
        """Set the hooks that the level needs; returns the undo."""
        if self._rank >= 1 or self._config.trace_batches:
            self._modules = ModuleTap(self._names, UntracedReducer(self._reducer()), self._clock, self._config, self._warn)
            self._undo.append(self._modules.attach())
        if self._rank >= 2:
            context = OpContext(self._names.module_name)
            self._ops = OpTap(context, UntracedReducer(self._reducer()), self._clock)
            self._undo.append(context.attach())
            self._live = LiveMode(self._ops, self._warn)

        def undo() -> None:
            self.end_microbatch()
            for each in self._undo:
                each()

        return undo

    def on_root(self, module: torch.nn.Module) -> None:
        """A new outermost module was called."""
        if type(module).__name__ == "OptimizedModule" and self._rank >= 2:
            self._warn("level ops runs torch.compile'd modules eagerly: torch compiles nothing under a dispatch mode")

    def begin_microbatch(self) -> None:
        """An outermost training call begins."""
        due = self._due(self._clock.step)
        if self._modules is not None:
            self._modules.enabled = (due and self._rank >= 1) or self._clock.batch in self._config.trace_batches
        if self._live is not None and due:
            self._live.enter()

    def end_microbatch(self) -> None:
        """Its backward is over."""
        if self._live is not None:
            self._live.leave()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Off while a replay runs; the replay's own module tap is on."""
        was = self._modules.enabled if self._modules is not None else False
        if self._modules is not None:
            self._modules.enabled = False
        try:
            yield
        finally:
            if self._modules is not None:
                self._modules.enabled = was

    def collect(self, step: int, parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer) -> list[Reading]:
        """All rows of the step so far."""
        rows: list[Reading] = []
        if self._modules is not None:
            self._modules.enabled = False
            rows += self._modules.collect(step)
        if self._ops is not None:
            rows += self._ops.collect(step)
        if self._rank >= 1 and self._params_due(step):
            rows += parameter_readings(
                self._names, [optimizer], self._reducer(), step, clock=self._clock, config=self._config
            )
        return rows

    # what a replay shows

    def observe_replay(self, microbatch: Microbatch, step: int) -> Callable[[Node, Sequence[torch.Tensor]], None]:
        """Rows for every traced op of a replay."""

        def observe(node: Node, outputs: Sequence[torch.Tensor]) -> None:
            for index, tensor in enumerate(outputs):
                if tensor.is_floating_point() and len(self._replay_rows) < 100_000:
                    ticket = self._replay_reducer.add(tensor)
                    if ticket is not None:
                        dtype = str(tensor.dtype).removeprefix("torch.")
                        self._replay_rows.append((node, index, dtype, tuple(tensor.shape), ticket, microbatch.number))

        return observe

    def collect_replay(self, step: int) -> list[Reading]:
        """The rows that replays of this step made."""
        if not self._replay_rows:
            return []
        summaries = self._replay_reducer.drain()
        rows, self._replay_rows = self._replay_rows, []
        return [_replay_reading(step, summaries[ticket], *row, number) for *row, ticket, number in rows]


def _replay_reading(
    step: int, summary: Summary, node: Node, index: int, dtype: str, shape: tuple[int, ...], microbatch: int
) -> Reading:
    place = node.place
    port = f"grad_in[{index}]" if place.phase == "backward" else f"out[{index}]"
    return Reading(
        step=step, microbatch=microbatch, phase=place.phase, site=place.site, port=port, order=node.traced.index,
        dtype=dtype, shape=shape, summary=summary, module=place.module, op=node.traced.op, source=place.source(),
        recompute=place.recompute, replay=True, literal_inf=bool(node.traced.bits) and not node.traced.real,
    )  # fmt: skip


