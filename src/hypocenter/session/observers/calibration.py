"""`run --calibrate`: the noise floor of a step, from replays in which every sum is off by a rounding.

Before the update of a due step each micro-batch is done again: once as it was, which shows that a replay repeats the
run at all, then SAMPLES times perturbed (hypocenter.replay.calibration). The perturbed ones leave the rows that the
step itself leaves, marked `replay` and `calibrate[s]`: modules (level modules and up), losses, gradients and their
norm, and with the next step the parameters and optimizer state that an update with these gradients would have made.
Steps that follow one another are one trajectory per sample (hypocenter.session.observers.calibration).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.nouns import LEVELS, Reading
from hypocenter.record.facts_file import add_calls
from hypocenter.record.layout import rank_directory
from hypocenter.replay.calibration import SAMPLES, Rounding
from hypocenter.replay.engine import Replayed
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.session.calibrated_gradients import Gradients, Value, readings
from hypocenter.session.check import Check, scalar_reading
from hypocenter.session.levels import UntracedReducer
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.repeats import how_far
from hypocenter.tap.clock import Clock
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.operator_calls import CallsMode
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tree import flatten

CLIPPED = 1.0 + 1e-4  # times the norm after it: what the norm before clipping is at least, when it was clipped
_SEED = 0x5EED  # any number: of the generators of the noise, which nobody else draws from


class Calibration(Observer):
    """Writes the rows of replays in which every sum is off by a rounding."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether some steps are to be calibrated."""
        return config.calibrate != "never"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        config = context.config
        self._is_due = schedule.parse(config.calibrate)
        self._records_modules = schedule.parse(config.schedule)
        self._records_parameters = schedule.parse(config.param_schedule)
        self._has_level = LEVELS.index(config.level) >= LEVELS.index("modules")
        self._norm_before_clip: float | None = None
        self._trajectories = [Trajectory() for _ in range(SAMPLES)]
        self._later: list[Reading] = []  # of parameters, for the step after
        self._can_follow = True
        self._has_calls = False

    def seen_before_clip(self, parameters: Sequence[Tensor], check: Check) -> None:
        """Keep the gradient norm from before clipping, as that is the one that is recorded."""
        self._norm_before_clip = check.total_norm

    def before_update(self, update: Update) -> None:
        """Replay a due step before its update, while the parameters are still those that it started from."""
        norm, self._norm_before_clip = self._norm_before_clip, None
        self.rows += [row for row in self._later if row.step == update.step]
        self._later = [row for row in self._later if row.step > update.step]
        if not self._is_due(update.step) or not update.microbatches:
            self._come_back()
            return
        try:
            if not update.check.loss_finite or update.check.bad_params:
                raise ReplayImpossible("its loss or gradients are not finite")
            self._measure(update, norm if norm is not None else update.check.total_norm)
        except ReplayImpossible as why:
            self._come_back()
            self.context.warn(f"no noise floor was measured at step {update.step}: {why}")

    def after_update(self, update: Update) -> None:
        """Let all samples go on with the run, or stay where they are if the run has skipped its update."""
        for trajectory in self._trajectories:
            trajectory.stay() if update.skipped else trajectory.go_on()
        if update.skipped:
            self._later.clear()

    def at_end(self) -> None:
        """Drop the copies of all samples."""
        self._come_back()

    def _come_back(self) -> None:
        for trajectory in self._trajectories:
            trajectory.come_back()

    def _measure(self, update: Update, norm: float) -> None:
        named = [(name, p) for name, p in self.context.names.parameters() if p.requires_grad]
        gradients = Gradients(self.context.names, self.context.config, named)
        for microbatch in update.microbatches:
            replayed = self._again(microbatch, gradients.parameters)
            must_repeat(microbatch, replayed)
            gradients.add(replayed.grads)
        left_out = gradients.fit()
        if left_out:
            self.context.warn(
                f"gradients of {left_out} of {len(named)} parameters get no noise floor: they are not what this "
                "rank's own micro-batches give (reduced over ranks, or changed by the program)"
            )
        for sample, trajectory in enumerate(self._trajectories):
            with trajectory.in_place():
                rows = self._replays(update, gradients, sample, norm)
            self.rows += [_marked(row, sample) for row in rows]
            if self._can_follow:
                self._follow(update, gradients, trajectory, sample)
            gradients.forget()

    def _again(self, microbatch: Microbatch, parameters: Sequence[Tensor]) -> Replayed:
        """Replay a micro-batch as it was; the first time note the operators that each module calls among the facts."""
        context = self.context
        if self._has_calls or context.directory is None:
            return context.replayer.run(microbatch, parameters)
        self._has_calls, seen = True, OpContext(context.names.module_name)
        mode = CallsMode(seen)
        replayed = context.replayer.run(microbatch, parameters, mode=mode, context=seen)
        add_calls(rank_directory(context.directory, context.rank()[0]), mode.noted.calls)
        return replayed

    def _replays(self, update: Update, gradients: Gradients, sample: int, norm: float) -> list[Reading]:
        clock, rows, number = self.context.clock, list[Reading](), 0
        for microbatch in update.microbatches:
            replayed, found = self._perturbed(update.step, microbatch, gradients.parameters, sample)
            gradients.add(replayed.grads)
            rows += found
            scale = update.scaled.state.scale if update.scaled is not None else 1.0
            for value in (value for value in replayed.values if value.numel() == 1):
                loss = float(value) / (scale or 1.0)
                rows.append(scalar_reading("loss", "loss", loss, update.step, clock.next_order(), number))
                number += 1
        gradients.settle(is_clipped=norm > CLIPPED * update.check.total_norm)
        rows += gradients.rows(update.step, max(0, clock.microbatch - 1), clock.next_order)
        if (ratio := gradients.norm_ratio) is not None:
            rows.append(scalar_reading("grad_norm", "grad", norm * ratio, update.step, clock.next_order()))
        return rows

    def _follow(self, update: Update, gradients: Gradients, trajectory: Trajectory, sample: int) -> None:
        scaled = update.scaled
        scale = 1.0 if scaled is None or scaled.is_unscaled else scaled.state.scale or 1.0  # that its step takes out
        given = gradients.scaled() if scale == 1.0 else ((p, grad.float() / scale) for p, grad in gradients.scaled())
        shadows = trajectory.update(update.optimizer, given)
        context, step = self.context, update.step + 1
        if self._has_level and self._records_parameters(step):
            values = (value for shadow in shadows for value in _values(shadow))
            rows = readings(values, context.names, context.config, step, 0, context.clock.next_order)
            self._later += [_marked(row, sample) for row in rows]
        if SAMPLES * trajectory.n_bytes > context.config.keep_mb << 20:
            self._can_follow = False
            self._come_back()
            if self._is_due(step):
                context.warn(
                    f"noise floors after step {update.step} are of that step alone, and too low for two whole runs: "
                    f"{SAMPLES} copies of parameters and optimizer state are larger than keep_mb "
                    f"({context.config.keep_mb} MiB)"
                )

    def _perturbed(
        self, step: int, microbatch: Microbatch, parameters: Sequence[Tensor], sample: int
    ) -> tuple[Replayed, list[Reading]]:
        context, clock = self.context, Clock()
        clock.microbatch = microbatch.number
        tap = ModuleTap(context.names, UntracedReducer(context.config), clock, context.config, context.warn)

        def restart() -> None:
            tap.collect(step)
            clock.resume_at(clock.step + 1)  # calls of a module are counted from 0 again

        mode = Rounding(_SEED + sample + SAMPLES * (microbatch.number + 1) + 1009 * (step + 1), restart)
        records = self._has_level and self._records_modules(step)
        undo = tap.attach() if records else None
        tap.enabled = clock.recording = records
        try:
            replayed = context.replayer.run(microbatch, parameters, mode=mode)
            rows = tap.collect(step)
        finally:
            tap.enabled = False
            if undo is not None:
                undo()
        return replayed, [replace(row, microbatch=microbatch.number) for row in rows]


def _values(shadow: Shadow) -> Iterator[Value]:
    parameter, values = shadow.parameter, shadow.values
    yield Value(phase="param", parameter=parameter, port="value", tensor=values, dtype=values.dtype)
    for key, held in shadow.state.items():
        for port, tensor in flatten(held, str(key)):
            yield Value(phase="optimizer", parameter=parameter, port=port, tensor=tensor, dtype=tensor.dtype)


def _marked(row: Reading, sample: int) -> Reading:
    return replace(row, replay=True, op=f"calibrate[{sample}]")


def must_repeat(microbatch: Microbatch, replayed: Replayed) -> float:
    """Return how far a replay's losses are from those of the run: the largest relative difference.

    Raises:
        UnlikeTheRun, ReplayImpossible: it is no replay of it.
    """
    values = [value for value in replayed.values if value.numel() == 1]
    if len(values) != len(microbatch.values):
        raise ReplayImpossible("a replay gives another number of losses")
    if not values:
        return 0.0
    pairs = torch.stack(
        [torch.stack([v.double().cpu() for v in side]).reshape(-1) for side in (microbatch.values, values)]
    )
    return max(how_far(was, now) for was, now in pairs.T.tolist())


# After an update with other gradients a run trains on from other parameters, and Adam makes large steps of small
# gradients: from the second step on most of what two good runs are apart comes from there. So each sample has a
# trajectory of its own: its gradients update copies of parameters and state, and these copies stand in for the
# parameters when the next step is replayed.
@dataclass(frozen=True, slots=True, kw_only=True)
class Shadow:
    """A parameter of the run, and its values and state in the sample."""

    parameter: Tensor
    values: Tensor
    state: dict[str, Any]

    def tensors(self) -> Iterator[Tensor]:
        """Yield the values and all tensors of the state."""
        yield self.values
        for _, value in flatten(self.state, ""):
            yield value


class Trajectory:
    """The parameters of one sample. They are the run's own until the first update."""

    def __init__(self) -> None:
        self._shadows: dict[int, Shadow] = {}
        self._next: dict[int, Shadow] = {}

    @property
    def n_bytes(self) -> int:
        """What all its copies occupy in bytes, those of the step to come included."""
        shadows = (self._shadows | self._next).values()
        return sum(t.numel() * t.element_size() for shadow in shadows for t in shadow.tensors())

    @contextlib.contextmanager
    def in_place(self) -> Generator[None, None, None]:
        """Let the run's parameters hold the sample's values inside this block, and their own storage again after it."""
        own: list[tuple[Tensor, Tensor]] = []
        try:
            for shadow in self._shadows.values():
                own.append((shadow.parameter, shadow.parameter.data))
                shadow.parameter.data = shadow.values
            yield
        finally:
            for parameter, data in own:
                parameter.data = data

    def update(self, optimizer: Any, gradients: Iterable[tuple[Tensor, Tensor]]) -> list[Shadow]:
        """Return the sample's parameters after an update with these gradients. It counts once `go_on` is called."""
        self._next = {id(s.parameter): s for s in updated(optimizer, gradients, self._shadows)}
        return list(self._next.values())

    def go_on(self) -> None:
        """Keep the sample's update: the run has updated."""
        self._shadows |= self._next
        self._next = {}

    def stay(self) -> None:
        """Drop the sample's update: the run has skipped its own."""
        self._next = {}

    def come_back(self) -> None:
        """Set the sample back to the run's parameters: steps in between were not seen."""
        self._shadows, self._next = {}, {}


def updated(optimizer: Any, gradients: Iterable[tuple[Tensor, Tensor]], shadows: dict[int, Shadow]) -> Iterator[Shadow]:
    """Yield parameters after an update with other gradients, one by one; optimizer and parameters stay as they are.

    Only for optimizers that torch itself defines: the rule is called on a copy of the optimizer that holds a copy of
    one parameter and of its state, and none of the user's hooks. Nothing for others, nor for LBFGS, whose parameters
    depend on one another.

    Args:
        shadows: by id of the parameter, where the copies start from; the run's own where there is none.
    """
    kind: Any = type(optimizer)
    if not f"{kind.__module__}.".startswith("torch.optim.") or kind.__name__ == "LBFGS":
        return
    rule = kind.step
    while hasattr(rule, "__wrapped__"):
        rule = rule.__wrapped__  # torch's own wrappers, which call everybody's hooks and set the grad mode
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for parameter, gradient in gradients:
        group = group_of.get(id(parameter))
        if group is not None:
            start = shadows.get(id(parameter)) or Shadow(
                parameter=parameter, values=parameter.detach(), state=optimizer.state.get(parameter) or {}
            )
            yield _alone(optimizer, rule, group, start, gradient)


def _alone(optimizer: Any, rule: Any, group: dict[str, Any], start: Shadow, gradient: Tensor) -> Shadow:
    kind: Any = type(optimizer)
    twin: Any = kind.__new__(kind)
    twin.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})
    copied = start.values.clone().requires_grad_()
    copied.grad = gradient.to(copied.dtype)
    options = {key: _copied(value) for key, value in group.items() if key != "params"}
    twin.param_groups = [{**options, "params": [copied]}]
    twin.state = copy.copy(optimizer.state)  # a defaultdict: emptied, it stays one
    twin.state.clear()
    if start.state:
        twin.state[copied] = {key: _copied(value) for key, value in start.state.items()}
    with torch.no_grad():
        rule(twin)
    return Shadow(parameter=start.parameter, values=copied.detach(), state=twin.state[copied])


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)
