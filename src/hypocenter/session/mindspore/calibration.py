"""`run --calibrate`: the noise floor of a step, from replays in which every sum is off by a rounding.

The rows are those of hypocenter.session.observers.calibration: before the update of a due step each micro-batch is done
again once as it was, which shows that a replay repeats the run at all, then SAMPLES times perturbed. PyNative only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.nouns import LEVELS, Reading
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.calibration import Rounding
from hypocenter.replay.mindspore.engine import Replayed, Replayer
from hypocenter.replay.roundoff import SAMPLES
from hypocenter.session.check import scalar_reading
from hypocenter.session.events import Update
from hypocenter.session.gradient_factors import Factors
from hypocenter.session.mindspore.seams import Context, Due, Part
from hypocenter.session.mindspore.sentinel import loss_of
from hypocenter.session.observers.repeats import how_far
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.summary.reducers.mindspore_values import dtype_name, is_on_host, on_host
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.cells import CellTap
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.parameters import parameter_readings
from hypocenter.tap.mindspore.tape import GradCall, Undo
from hypocenter.tap.wanted import is_wanted

CLIPPED = 1.0 + 1e-4  # times the norm after it: what the norm before clipping is at least, when it was clipped
_SEED = 0x5EED  # any number: of the generators of the noise, which nobody else draws from
Values = dict[int, tuple[Any, NDArray[Any]]]
Array = NDArray[Any]


class Calibration(Part):
    """Writes rows of replays in which every sum is off by a rounding: the noise floor of a step."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        config = context.config
        self._is_due = schedule.parse(config.calibrate)
        self._records_modules = schedule.parse(config.schedule)
        self._records_parameters = schedule.parse(config.param_schedule)
        self._has_level = LEVELS.index(config.level) >= LEVELS.index("modules")
        self._replayer = Replayer(context.names, context.paused)
        self._trajectories = [Trajectory() for _ in range(SAMPLES)]
        self._later: list[Reading] = []  # of parameters, for the step after
        self._can_follow = True
        self._seen_step = -1
        self._clock = Clock()
        self._tap = CellTap(context.names, self._reducer(), self._clock, config, context.warn)

    def _reducer(self) -> MindSporeReducer:
        return MindSporeReducer(histogram=self.context.config.histogram, sketch=self.context.config.sketch)

    def attach(self) -> Undo:
        """Wrap cells, if their rows are wanted."""
        if self.context.config.calibrate != "never" and self._has_level:
            return self._tap.attach(self.context.patches)
        return lambda: None

    def before_update(self, update: Due) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Replay a due step before its update, while the parameters are still those that it started from."""
        due = update
        if due.skipped:
            return
        self._seen_step = due.step
        self.rows += [row for row in self._later if row.step == due.step]
        self._later = [row for row in self._later if row.step > due.step]
        if not self._is_due(due.step) or not due.microbatches:
            self._come_back()
            return
        try:
            if not due.check.loss_finite or due.check.bad_params:
                raise ReplayImpossible("its loss or gradients are not finite")
            self._measure(due)
        except ReplayImpossible as why:
            self._come_back()
            self.context.warn(f"no noise floor was measured at step {due.step}: {why}")

    def after_update(self, update: Update) -> None:
        """Let all samples go on, as the run has updated."""
        if update.skipped:
            return
        for trajectory in self._trajectories:
            trajectory.go_on()

    def end_step(self, step: int) -> None:
        """Warn if a due step was not measured; the step is over."""
        if self._seen_step < step and self._is_due(step):
            self._come_back()
            self.context.warn(f"no noise floor was measured at step {step}: it was skipped, or ran as a compiled graph")

    def _come_back(self) -> None:
        for trajectory in self._trajectories:
            trajectory.come_back()

    def _measure(self, due: Due) -> None:
        gradients = Gradients(self.context.names, due)
        for call in due.microbatches:
            replayed = self._replayer.run(call)
            must_repeat(call, replayed)
            gradients.add(call, replayed.grads)
        left_out = gradients.fit()
        if left_out:
            self.context.warn(
                f"gradients of {left_out} of {len(due.gradients)} parameters get no noise floor: they are not what "
                "this rank's own micro-batches give (reduced over ranks, or changed by the program)"
            )
        for sample, trajectory in enumerate(self._trajectories):
            with self.context.paused(), trajectory.in_place():
                rows = self._replays(due, gradients, sample)
            self.rows += [_marked(row, sample) for row in rows]
            if self._can_follow:
                self._follow(due, gradients, trajectory, sample)
            gradients.forget()

    def _replays(self, due: Due, gradients: Gradients, sample: int) -> list[Reading]:
        next_order, rows, number = self.context.clock.next_order, list[Reading](), 0
        for call in due.microbatches:
            replayed, found = self._perturbed(due.step, call, sample)
            gradients.add(call, replayed.grads)
            rows += found
            scale = call.scale.read() if call.scale is not None and call.scale.in_loss else 1.0
            for value in (value for value in replayed.values if value.size == 1):
                loss = float(value.asnumpy().reshape(-1)[0]) / (scale or 1.0)
                rows.append(scalar_reading("loss", "loss", loss, due.step, next_order(), number))
                number += 1
        norm = due.norm if due.norm is not None else due.check.total_norm
        ratio = gradients.settle(is_clipped=norm > CLIPPED * due.check.total_norm)
        rows += gradients.rows(self.context, self._reducer(), due.step)
        if ratio is not None:
            rows.append(scalar_reading("grad_norm", "grad", norm * ratio, due.step, next_order()))
        return rows

    def _perturbed(self, step: int, call: GradCall, sample: int) -> tuple[Replayed, list[Reading]]:
        tap, records = self._tap, self._has_level and self._records_modules(step)
        tap.forget()
        self._clock.microbatch = call.number
        tap.enabled = self._clock.recording = records
        around = Rounding(_SEED + sample + SAMPLES * (call.number + 1) + 1009 * (step + 1))
        try:
            replayed = self._replayer.run(call, around=around)
            rows = tap.collect(step)
        finally:
            tap.enabled = self._clock.recording = False
        return replayed, [replace(row, microbatch=call.number) for row in rows]

    def _follow(self, due: Due, gradients: Gradients, trajectory: Trajectory, sample: int) -> None:
        context, step, reason = self.context, due.step + 1, why_not(due.optimizer)
        if not reason:
            with context.paused(), trajectory.updated(due.optimizer, gradients.given()):
                if self._has_level and self._records_parameters(step):
                    rows = parameter_readings(
                        context.names, due.optimizer, (), self._reducer(), step, clock=context.clock,
                        config=context.config,
                    )  # fmt: skip
                    self._later += [_marked(replace(row, microbatch=0), sample) for row in rows]
            if SAMPLES * trajectory.n_bytes > context.config.keep_mb << 20:
                reason = (
                    f"{SAMPLES} copies of parameters and optimizer state are larger than keep_mb "
                    f"({context.config.keep_mb} MiB)"
                )
        if reason:
            self._can_follow = False
            self._come_back()
            if self._is_due(step):
                context.warn(
                    f"noise floors after step {due.step} are of that step alone, and too low for two whole runs: "
                    + reason
                )


def _marked(row: Reading, sample: int) -> Reading:
    return replace(row, replay=True, op=f"calibrate[{sample}]")


def must_repeat(call: GradCall, replayed: Replayed) -> float:
    """Return how far a replay's loss is from that of the run, relative to it.

    Raises:
        UnlikeTheRun, ReplayImpossible: it is no replay of it.
    """
    if replayed.drew:
        raise ReplayImpossible("MindSpore cannot draw the same values again (--no-dropout drops none)")
    values = [value for value in replayed.values if value.size == 1]
    was = loss_of(call)
    if was is None or not values:
        return 0.0
    return how_far(was, float(np.asarray(values[0].asnumpy()).reshape(-1)[0]))


# Each sample has a trajectory of its own, as in hypocenter.session.observers.calibration. MindSpore's optimizers keep
# all their state in Parameters: for an update of the sample these hold its values, the optimizer works, what came out
# is copied, and the run's own values are put back where they were, to the bit.
"""id of a Parameter -> itself, and values."""


class Trajectory:
    """The parameters of one sample. They are the run's own until the first update."""

    def __init__(self) -> None:
        self._held: Values = {}
        self._next: Values = {}

    @property
    def n_bytes(self) -> int:
        """What all its copies occupy in bytes, those of the step to come included."""
        return sum(array.nbytes for held in (self._held, self._next) for _, array in held.values())

    @contextlib.contextmanager
    def in_place(self, also: Sequence[Any] = ()) -> Generator[None, None, None]:
        """Let the run's Parameters hold the sample's values inside this block, and their own again after it.

        Args:
            also: Parameters that may change in the block, and are to be put back too.
        """
        touched = {id(p): p for p in [*also, *(parameter for parameter, _ in self._held.values())]}
        own = [(parameter, copy_of(parameter)) for parameter in touched.values()]
        try:
            for parameter, array in self._held.values():
                _assign(parameter, array)
            yield
        finally:
            for parameter, array in own:
                _assign(parameter, array)

    @contextlib.contextmanager
    def updated(self, optimizer: Any, gradients: Sequence[Any]) -> Generator[None, None, None]:
        """Update the sample with these gradients inside the block. The update counts once `go_on` is called."""
        held = list(optimizer.get_parameters())
        with self.in_place(also=held):
            optimizer(tuple(gradients))
            self._next = {id(parameter): (parameter, copy_of(parameter)) for parameter in held}
            yield

    def go_on(self) -> None:
        """Keep the sample's update: the run has updated."""
        self._held |= self._next
        self._next = {}

    def stay(self) -> None:
        """Drop the sample's update: the run has skipped its own."""
        self._next = {}

    def come_back(self) -> None:
        """Set the sample back to the run's parameters: steps in between were not seen."""
        self._held, self._next = {}, {}


def why_not(optimizer: Any) -> str:
    """Say why no update of a sample can be made with this optimizer; "" if it can."""
    if not f"{type(optimizer).__module__}.".startswith("mindspore."):
        return f"{type(optimizer).__name__} may keep state of which only it knows"
    if any(dtype_name(p) == "bfloat16" and is_on_host(p) for p in _parameters(optimizer)):
        return "MindSpore cannot assign bfloat16 on a CPU"
    return ""


def copy_of(parameter: Any) -> NDArray[Any]:
    """Copy the parameter's values to the host."""
    return np.array(parameter.asnumpy(), order="C")


def _parameters(optimizer: Any) -> Iterable[Any]:
    return optimizer.get_parameters()


def _assign(parameter: Any, array: NDArray[Any]) -> None:
    with ms._no_grad():
        ms.ops.assign(parameter, ms.Tensor(array))


class Gradients:
    """Adds up the gradients of one sample after the other. The first one is without noise: `fit` compares with it.

    Sums are of the format in which the gradients come out of backward, as the program's are.
    """

    def __init__(self, names: NameMap, due: Due) -> None:
        self._names = names
        self._pairs = list(due.gradients)
        self._places = {id(parameter): place for place, (parameter, _) in enumerate(self._pairs)}
        self._sums: list[Array | None] = [None] * len(self._pairs)
        self._factors = Factors([int(parameter.size) for parameter, _ in self._pairs])

    def add(self, call: GradCall, grads: Sequence[Any]) -> None:
        """Add the gradients of one micro-batch to the sums."""
        for weight, gradient in zip(call.weights, grads, strict=False):
            place = self._places.get(id(weight))
            if place is None or not isinstance(gradient, ms.Tensor):
                continue
            values = np.array(on_host(gradient))
            known = self._sums[place]
            self._sums[place] = values if known is None else known + values

    def fit(self) -> int:
        """Find each parameter's factor from the sums without noise, forget the sums, and return how many do not fit."""
        for place, ((_, gradient), base) in enumerate(zip(self._pairs, self._sums, strict=True)):
            given = on_host(gradient) if isinstance(gradient, ms.Tensor) else None
            if given is None or base is None or given.shape != base.shape:
                self._factors.leave_out()
                continue
            a, b = (array.astype(np.float64).reshape(-1) for array in (given, base))
            is_equal = bool(np.array_equal(given, base))
            self._factors.fit(place, dot=float(a @ b), given=float(a @ a), base=float(b @ b), is_equal=is_equal)
        self._factors.leave_out_flukes()
        self.forget()
        return self._factors.n_left_out

    def forget(self) -> None:
        """Forget the sums, so that the next sample can be added up."""
        self._sums = [None] * len(self._pairs)

    def settle(self, *, is_clipped: bool) -> float | None:
        """Finish a sample; return its norm over that without noise, None if a part of it is not known."""
        square = sum(float(np.square(total.astype(np.float64)).sum()) for total in self._sums if total is not None)
        return self._factors.settle(square, is_clipped=is_clipped)

    def given(self) -> list[Any]:
        """Return a gradient for each of the optimizer's parameters; of those that do not fit it is the run's own."""
        sample = dict(self._scaled())
        return [
            ms.Tensor(sample[place]).astype(gradient.dtype) if place in sample else gradient
            for place, (_, gradient) in enumerate(self._pairs)
        ]

    def rows(self, context: Context, reducer: MindSporeReducer, step: int) -> list[Reading]:
        """Return the rows of this sample's gradients, in the form in which `parameter_readings` writes the run's."""
        found: list[tuple[tuple[str, ...], Any, Array, int]] = []
        for place, array in self._scaled():
            parameter, gradient = self._pairs[place]
            known = self._names.param_names(parameter) or (self._names.label(parameter),)
            if is_wanted(known, context.config):
                found.append((known, gradient, array, reducer.add(ms.Tensor(array))))
        summaries = reducer.drain()
        return [
            Reading(
                step=step, microbatch=max(0, context.clock.microbatch - 1), phase="grad", site=known[0], port="grad",
                order=context.clock.next_order(), dtype=dtype_name(gradient), shape=tuple(array.shape),
                summary=summaries[ticket], names=known if len(known) > 1 else (),
            )
            for known, gradient, array, ticket in found
        ]  # fmt: skip

    def _scaled(self) -> Iterator[tuple[int, Array]]:
        """Yield (place, gradient as its optimizer would have been given it) of the parameters that fit."""
        for place, factor in self._factors:
            total = self._sums[place]
            if total is not None:
                is_short = total.itemsize < 4 and factor != 1.0  # another rounding would be noise of ours
                wide = total.astype(np.float32) if is_short else total
                yield place, wide if factor == 1.0 else (wide * wide.dtype.type(factor))
