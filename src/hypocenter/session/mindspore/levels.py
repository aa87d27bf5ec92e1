"""Which taps are on in a MindSpore program: the level, its schedule, traced batches; rows are collected at updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from hypocenter import schedule
from hypocenter.nouns import LEVELS, Reading
from hypocenter.session.events import Update
from hypocenter.session.mindspore import seams
from hypocenter.session.mindspore.tensor_file import write_bits
from hypocenter.session.mindspore.update_tensors import UpdateTensors
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.tap.frames import Frame
from hypocenter.tap.mindspore.cells import CellTap
from hypocenter.tap.mindspore.parameters import parameter_readings
from hypocenter.tap.mindspore.probe import ProbeTap
from hypocenter.tap.mindspore.tape import GradCall, Undo
from hypocenter.tap.mindspore.tensors import TensorKeeper

TENSORS_BUDGET_BYTES = 4 << 30  # of files that level tensors may write per rank


class Levels(seams.Levels):
    """Switches taps on and off at micro-batch boundaries and collects their rows at updates."""

    def __init__(self, context: seams.Context) -> None:
        super().__init__(context)
        config = context.config
        self._level = LEVELS.index(config.level)
        self._due = schedule.parse(config.schedule)
        self._params_due = schedule.parse(config.param_schedule)
        self._probes = ProbeTap(context.names, self._reducer(), context.clock, context.warn)
        self._cells: CellTap | None = None
        self._keeper: TensorKeeper | None = None
        self._updates: UpdateTensors | None = None
        if self._level >= LEVELS.index("modules") or config.trace_batches:
            self._cells = CellTap(context.names, self._reducer(), context.clock, config, context.warn)
        if config.level == "tensors":
            self._updates = UpdateTensors(
                config, context.names, context.rank_directory, context.warn, TENSORS_BUDGET_BYTES
            )

    def _reducer(self) -> MindSporeReducer:
        return MindSporeReducer(histogram=self.context.config.histogram, sketch=self.context.config.sketch)

    def attach(self) -> Undo:
        """Wrap what the level needs."""
        undo: list[Callable[[], None]] = [self._probes.attach()]
        if self._cells is not None:
            undo.append(self._cells.attach(self.context.patches))
        if self.context.config.level == "ops":
            self.context.warn("MindSpore's operators are not recorded one by one: level ops records as level modules")
        if self.context.config.health != "never":
            self.context.warn("a step of MindSpore is not done again for its health: --health records nothing")

        def undo_all() -> None:
            for each in reversed(undo):
                each()

        return undo_all

    def begin_call(self, cell: Any) -> None:
        """The forward of a training cell's first micro-batch may run before `begin_microbatch`."""
        self._enable()

    def begin_microbatch(self, call: GradCall) -> None:
        """Forward is about to run, or has run within a training cell."""
        self._enable()

    def end_call(self, cell: Any) -> None:
        """What a training cell computed after its update is of no step."""
        if self._cells is not None:
            self._cells.enabled = False

    def frames(self) -> tuple[Frame, ...]:
        """The last cell calls that were collected, oldest first."""
        return self._cells.frames() if self._cells is not None else ()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Off while a replay runs."""
        clock, cells = self.context.clock, self._cells
        enabled, recording = cells is not None and cells.enabled, clock.recording
        if cells is not None:
            cells.enabled = False
        clock.recording = False
        try:
            yield
        finally:
            clock.recording = recording
            if cells is not None:
                cells.enabled = enabled

    def collect(self, step: int, optimizer: Any, gradients: Sequence[tuple[Any, Any]] = ()) -> list[Reading]:
        """All rows of the step so far, in execution order."""
        rows = self._probes.collect(step)
        if self._cells is not None:
            rows += self._cells.collect(step)
            self._cells.enabled = False
        if self._keeper is not None:
            self._keeper.flush(step, {id(parameter): gradient for parameter, gradient in gradients})
        if self._level >= LEVELS.index("modules") and self._params_due(step):
            rows += parameter_readings(
                self.context.names, optimizer, gradients, self._reducer(), step, clock=self.context.clock,
                config=self.context.config,
            )  # fmt: skip
        return sorted(rows, key=lambda reading: reading.order)

    def before_update(self, update: Update) -> None:
        """The optimizer is about to apply its rule."""
        if self._updates is not None and self._due(update.step):
            self._updates.before(update.optimizer, update.gradients, update.step)

    def after_update(self, update: Update) -> None:
        """The optimizer has returned."""
        if self._updates is not None:
            self._updates.after(update.optimizer)

    def _enable(self) -> None:
        config, clock, cells = self.context.config, self.context.clock, self._cells
        if cells is None:
            return
        is_traced = clock.batch in config.trace_batches
        cells.enabled = (self._due(clock.step) and self._level >= LEVELS.index("modules")) or is_traced
        if config.level == "tensors" and self._keeper is None:
            self._keeper = TensorKeeper(
                self.context.rank_directory(), budget_bytes=TENSORS_BUDGET_BYTES, write=write_bits,
                warn=self.context.warn,
            )  # fmt: skip
            cells.keeper = self._keeper
