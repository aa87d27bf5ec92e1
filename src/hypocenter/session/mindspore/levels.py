"""Which taps are on in a MindSpore program: the level, its schedule, traced batches; rows are collected at updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Reading
from hypocenter.session.events import Update
from hypocenter.session.mindspore import seams
from hypocenter.session.mindspore.tensor_file import write_bits
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.tap.frames import Frame
from hypocenter.tap.mindspore.cells import CellTap
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.optimizers import bases_of, groups_of, loss_scale_of, members, state_of
from hypocenter.tap.mindspore.parameters import parameter_readings
from hypocenter.tap.mindspore.probe import ProbeTap
from hypocenter.tap.mindspore.tape import GradCall, Undo
from hypocenter.tap.mindspore.tensors import Bits, TensorKeeper, bits_of
from hypocenter.tap.wanted import is_wanted

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
        """Attach the taps that the level needs; return the undo."""
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
        """Switch the taps on: the forward of a training cell's first micro-batch may run before `begin_microbatch`."""
        self._enable()

    def begin_microbatch(self, call: GradCall) -> None:
        """Switch the taps on: forward is about to run, or has run within a training cell."""
        self._enable()

    def end_call(self, cell: Any) -> None:
        """Switch the taps off: what a training cell computes after its update belongs to no step."""
        if self._cells is not None:
            self._cells.enabled = False

    def frames(self) -> tuple[Frame, ...]:
        """Return the last cell calls that were collected, oldest first."""
        return self._cells.frames() if self._cells is not None else ()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Switch the taps off while a replay runs."""
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
        """Return all rows of the step so far, in execution order."""
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
        """Keep parameters, gradients and state before the optimizer applies its rule."""
        if self._updates is not None and self._due(update.step):
            self._updates.before(update.optimizer, update.gradients, update.step)

    def after_update(self, update: Update) -> None:
        """Keep parameters and state after the optimizer has applied its rule."""
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


# The files are those of session.update_tensors: `tensors/step-000012/update-0.safetensors` holds of the first optimizer
# that steps, for each parameter, `value|NAME`, `grad|NAME` and `state|exp_avg|NAME` before, and `after|NAME` and
# `after-state|exp_avg|NAME` after it. Gradients are as the optimizer gets them; where it divides them by a loss scale
# itself, that is `grad_scale`.
class UpdateTensors:
    """Copies parameters, gradients and state to the host at updates; writes one file per optimizer and step.

    Args:
        folder: of this rank.
        budget_bytes: nothing beyond it is kept in one run.
    """

    def __init__(
        self, config: Config, names: NameMap, folder: Callable[[], Path], warn: Callable[[str], None], budget_bytes: int
    ) -> None:
        self._config, self._names, self._folder, self._warn = config, names, folder, warn
        self._left_bytes = budget_bytes
        self._held: dict[str, Bits] = {}
        self._about: dict[str, Any] = {}
        self._step = self._number = -1

    def before(self, optimizer: Any, gradients: Sequence[tuple[Any, Any]], step: int) -> None:
        """Copy parameters, gradients and state to the host before the rule is applied; gradients are final."""
        self._held = {}
        self._number = self._number + 1 if step == self._step else 0
        self._step = step
        n_bytes = sum(6 * int(parameter.nbytes) for _, parameter in self._wanted(optimizer))  # with two of state
        if n_bytes > self._left_bytes:
            self._warn("parameters and state at updates are no longer kept: the size budget is used up")
            self._left_bytes = 0
            return
        self._about = self._told(optimizer)
        of_gradient = {id(parameter): gradient for parameter, gradient in gradients}
        self._hold("value", "state", optimizer)
        for name, parameter in self._wanted(optimizer):
            if of_gradient.get(id(parameter)) is not None:
                self._held[f"grad|{name}"] = bits_of(of_gradient[id(parameter)])

    def after(self, optimizer: Any) -> None:
        """Copy parameters and state to the host after the rule was applied, and write the file."""
        if not self._held:
            return
        self._hold("after", "after-state", optimizer)
        held, self._held = self._held, {}
        self._left_bytes -= sum(bits.array.nbytes for bits in held.values())
        folder = self._folder() / "tensors" / f"step-{self._step:06d}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            metadata = {"update": msgspec.json.encode(self._about).decode(), "step": str(self._step)}
            write_bits(held, folder / f"update-{self._number}.safetensors", metadata)
        except Exception as error:
            self._warn(f"what the optimizer did cannot be written: {error!r}")

    def _wanted(self, optimizer: Any) -> Iterator[tuple[str, Any]]:
        for parameter in members(optimizer):
            name = self._names.label(parameter)
            if is_wanted((name, name.rpartition(".")[0]), self._config):
                yield name, parameter

    def _hold(self, values: str, states: str, optimizer: Any) -> None:
        state = state_of(optimizer)
        for name, parameter in self._wanted(optimizer):
            if not parameter.size:
                continue
            self._held[f"{values}|{name}"] = bits_of(parameter)
            for word, tensor in state.get(id(parameter), ()):
                bits = bits_of(tensor)
                if word == "step":  # a counter has no dimension
                    bits = Bits(dtype=bits.dtype, array=bits.array.reshape(()))
                self._held[f"{states}|{word}|{name}"] = bits

    def _told(self, optimizer: Any) -> dict[str, Any]:
        groups = [
            {"options": options, "parameters": [self._names.label(parameter) for parameter in parameters]}
            for options, parameters in groups_of(optimizer)
        ]
        return {
            "kind": type(optimizer).__name__,
            "bases": bases_of(optimizer),
            "groups": groups,
            "grad_scale": loss_scale_of(optimizer),
            "is_skipped": False,
        }
