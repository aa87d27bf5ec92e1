"""Which taps are on: the level, its schedule, traced batches; their rows are collected at each update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Place, Reading, Summary
from hypocenter.record.facts_file import add_calls
from hypocenter.session.update_tensors import UpdateTensors
from hypocenter.summary.reducers.torch import TorchReducer
from hypocenter.summary.sketch import Placement
from hypocenter.tap.clock import Clock
from hypocenter.tap.compiled import CompiledTap
from hypocenter.tap.live import LiveMode
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.operator_calls import OperatorCalls
from hypocenter.tap.ops import OpTap
from hypocenter.tap.parameters import parameter_readings
from hypocenter.tap.placement import Wrappers
from hypocenter.tap.probe import ProbeTap
from hypocenter.tap.spread.activations import SpreadOfActivations
from hypocenter.tap.spread.parameters import SpreadOfParameters
from hypocenter.tap.spread.where import Where
from hypocenter.tap.tensors import TensorKeeper

TENSORS_BUDGET_BYTES = 4 << 30  # of files that level tensors may write per rank


class UntracedReducer:
    """A reducer whose own kernels are not seen by the dispatch modes that are on."""

    def __init__(self, config: Config, warn: Callable[[str], None] | None = None) -> None:
        self._reducer = TorchReducer(histogram=config.histogram, sketch=config.sketch, warn=warn)

    def add(self, tensor: torch.Tensor, where: Where | None = None, /) -> int | None:
        """Queue a tensor; a part of one is sketched as such, or not at all where its place in it is not known."""
        place, sketch = None, True
        if where is not None and where.is_part:
            sketch = where.offset is not None
            place = None if where.offset is None else Placement(shape=where.shape, offset=where.offset)
        if not torch._C._len_torch_dispatch_stack():
            return self._reducer.add(tensor, place, sketch=sketch)
        with _disable_current_modes():
            return self._reducer.add(tensor, place, sketch=sketch)

    def drain(self) -> list[Summary]:
        """Summaries by ticket."""
        with _disable_current_modes():
            return self._reducer.drain()


class Levels:
    """Switches taps on and off at micro-batch boundaries and collects their rows at updates."""

    def __init__(
        self,
        config: Config,
        names: NameMap,
        clock: Clock,
        warn: Callable[[str], None],
        rank_directory: Callable[[], Path],
        place: Callable[[], Place] = Place,
    ) -> None:
        self._config, self._names, self._clock, self._warn = config, names, clock, warn
        self._rank_directory = rank_directory
        self._wrappers = Wrappers()
        self._of_parameters = SpreadOfParameters(names, self._wrappers, place)
        self._of_activations = SpreadOfActivations(self._of_parameters, names, place)
        self._level = LEVELS.index(config.level)
        self._due = schedule.parse(config.schedule)
        self._params_due = schedule.parse(config.param_schedule)
        self._probes = ProbeTap(names, UntracedReducer(config, warn), clock, warn)
        self._modules: ModuleTap | None = None
        self._compiled: CompiledTap | None = None
        self._keeper: TensorKeeper | None = None
        self._ops: OpTap | None = None
        self._live: LiveMode | None = None
        self._updates: UpdateTensors | None = None
        self._undo: list[Callable[[], None]] = []

    def attach(self) -> Callable[[], None]:
        """Set the hooks that the level needs; returns the undo."""
        self._undo.append(self._probes.attach())
        if self._level >= LEVELS.index("modules") or self._config.trace_batches:
            self._modules = ModuleTap(
                self._names, UntracedReducer(self._config, self._warn), self._clock, self._config, self._warn
            )
            self._modules.spread = self._of_activations
            self._undo += [self._wrappers.attach(), self._modules.attach()]
        if self._level >= LEVELS.index("modules"):
            self._compiled = CompiledTap(self._names, self._clock, self._config, self._warn)
            self._undo.append(self._compiled.attach())
        if self._level >= LEVELS.index("ops"):
            context = OpContext(self._names.module_name)
            self._ops = OpTap(context, UntracedReducer(self._config, self._warn), self._clock)
            self._ops.calls = OperatorCalls()
            self._undo.append(context.attach())
            self._live = LiveMode(self._ops, self._warn)

        if self._config.level == "tensors":
            self._updates = UpdateTensors(
                self._config, self._names, self._rank_directory, self._warn, TENSORS_BUDGET_BYTES
            )

        def undo() -> None:
            self.end_microbatch()
            self._keep_calls()
            for each in reversed(self._undo):
                each()

        return undo

    @property
    def looks_at_rules(self) -> bool:
        """Whether `before_rule` does anything."""
        return self._updates is not None

    def before_rule(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """An optimizer's own rule is about to be applied."""
        if self._updates is not None and self._due(step):
            self._updates.before(optimizer, step)

    def after_rule(self, optimizer: torch.optim.Optimizer) -> None:
        """It has been."""
        if self._updates is not None:
            self._updates.after(optimizer)

    def on_root(self, module: torch.nn.Module) -> None:
        """A new outermost module was called."""
        if type(module).__name__ == "OptimizedModule" and self._live is not None:
            self._warn("level ops runs torch.compile'd modules eagerly: torch compiles nothing under a dispatch mode")

    def begin_microbatch(self) -> None:
        """An outermost training call begins."""
        due = self._due(self._clock.step)
        if self._modules is not None:
            traced = self._clock.batch in self._config.trace_batches
            self._modules.enabled = (due and self._level >= LEVELS.index("modules")) or traced
            if self._config.level == "tensors" and self._keeper is None:
                self._keeper = TensorKeeper(self._rank_directory(), budget_bytes=TENSORS_BUDGET_BYTES, warn=self._warn)
                self._modules.keeper = self._keeper
        if self._live is not None and due:
            self._live.enter()

    def before_backward(self, seeds: Sequence[torch.Tensor | None]) -> None:
        """Its forward is over; backward starts from these gradients, None where torch makes one."""
        if self._ops is not None:
            self._ops.flow.start(seeds)

    def end_microbatch(self) -> None:
        """Its backward is over."""
        if self._ops is not None:
            self._ops.flow.end()
        if self._live is not None:
            self._live.leave()

    def forget(self) -> None:
        """What modules computed in this step so far was no training."""
        if self._modules is not None:
            self._modules.forget()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Off while a replay runs."""
        enabled, recording = self._modules is not None and self._modules.enabled, self._clock.recording
        if self._modules is not None:
            self._modules.enabled = False
        self._clock.recording = False
        try:
            yield
        finally:
            self._clock.recording = recording
            if self._modules is not None:
                self._modules.enabled = enabled

    def _keep_calls(self) -> None:
        """Put the operators that each module called among the facts, once these are there."""
        noted = self._ops.calls if self._ops is not None else None
        if (
            self._ops is not None
            and noted is not None
            and noted.calls
            and add_calls(self._rank_directory(), noted.calls)
        ):
            self._ops.calls = None

    def collect(self, step: int, optimizers: Sequence[Any]) -> list[Reading]:
        """All rows of the step so far, in execution order."""
        self._keep_calls()
        rows = self._probes.collect(step)
        for tap in (self._modules, self._compiled, self._ops):
            if tap is not None:
                rows += tap.collect(step)
        if self._modules is not None:
            self._modules.enabled = False
        if self._keeper is not None:
            self._keeper.flush(step)
        if self._level >= LEVELS.index("modules") and self._params_due(step):
            rows += parameter_readings(
                self._names, optimizers, UntracedReducer(self._config), step, clock=self._clock, config=self._config,
                spread=self._of_parameters,
            )  # fmt: skip
        return sorted(rows, key=lambda reading: reading.order)
