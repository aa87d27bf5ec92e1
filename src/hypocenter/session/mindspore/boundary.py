"""The boundary between two steps: check the gradients, investigate what failed, act, update, write it down."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.detect.law_rows import CLIPPED_IN_VAIN, SITE, THROWN_AWAY
from hypocenter.nouns import Reading, StepRecord, replace
from hypocenter.session.check import Check
from hypocenter.session.events import Update
from hypocenter.session.failed import Failed
from hypocenter.session.guard import StopTraining
from hypocenter.session.mindspore.facts import FactsKeeper, learning_rate
from hypocenter.session.mindspore.parameter_check import ParameterCheck
from hypocenter.session.mindspore.scaling import StepScale
from hypocenter.session.mindspore.seams import Context, Due, Seams
from hypocenter.session.mindspore.sentinel import Sentinel
from hypocenter.session.observers.clip_calls import LOOKED
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.output import Output
from hypocenter.session.place_keeper import PlaceKeeper
from hypocenter.session.scalars import scalar_rows
from hypocenter.session.step_times import StepTimes
from hypocenter.tap.mindspore.gradients import Norms
from hypocenter.tap.mindspore.owners import Owners
from hypocenter.tap.mindspore.tape import GradCall, tensors
from hypocenter.tap.mindspore.updates import parameters_of


class Boundary:
    """What is known of the step under way, and what is done before and after its update.

    Args:
        context: of the session.
        seams: its parts.
        output: where rows and records go.
        place: keeps rank.json.
        close: ends the session, when the user wants training to stop.
    """

    def __init__(
        self, context: Context, seams: Seams, output: Output, place: PlaceKeeper, close: Callable[[], None]
    ) -> None:
        self._context, self._seams, self._output, self._place, self._close = context, seams, output, place, close
        self.sentinel = Sentinel(context.names, context.clock)
        self.scale = StepScale()
        self.n_usual = 1  # micro-batches of the last step
        self._owners = Owners()
        self._alive: dict[int, weakref.ref[Any]] = {}  # optimizers that have made updates, by their key for the clock
        self._facts = FactsKeeper(context)
        self._parameters = ParameterCheck(context)
        self._check: Check | None = None
        self._update: Due | None = None
        self._step = 0
        self._norm: float | None = None
        self._clip_norm: float | None = None
        self._clip_results = ClipResults()
        self._finding = ""
        self._lr: float | None = None
        self._healthy_steps = 0
        self._rows: list[Reading] = []
        self._times = StepTimes()
        self.timed = self._times

    def clips(self, gradients: Sequence[Any]) -> None:
        """Note the norm of gradients that are about to be clipped to a global norm."""
        norms = Norms(gradients).read()
        self._clip_norm = math.hypot(*norms)
        self._clip_results.clips(gradients)
        weights = self._context.tape.microbatches[-1].weights if self._context.tape.microbatches else ()
        if len(weights) == len(norms):
            labels = map(self._context.label, weights)
            check = Check(grad_norms=dict(zip(labels, norms, strict=True)))
            self._seams.tell("before_clip", weights, math.nan)
            self._seams.tell("seen_before_clip", weights, check)

    def before(self, optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any] | None:
        """Check the gradients that an optimizer was given. Returns what it is to use; None: it must not update."""
        context, microbatches = self._context, tuple(self._context.tape.microbatches)
        parameters = parameters_of(optimizer)
        self._finding = self._parameters.read() or self._finding
        self._seams.imposing.before_step(optimizer)
        pairs = _paired(parameters, gradients)
        if gradients and not pairs:
            context.warn(f"{type(optimizer).__name__} is given other gradients than it has parameters: not checked")
        self._step = self._begin_update(parameters, optimizer)
        raw = self.sentinel.of_microbatches(microbatches)
        given = self.sentinel.check(pairs, microbatches)
        names = set(given.grad_norms)
        left_in = self.scale.left_in(raw, given, optimizer, microbatches)
        check = given if left_in == 1.0 else _scaled(given, left_in)
        bad = [name for name in raw.bad_params if name in names] or check.bad_params
        self._check = check
        self._norm = self._unclipped(raw, check, names, microbatches)
        self._lr = learning_rate(optimizer)
        self._facts.note(optimizer, len(microbatches), self.scale.value)
        clip = "clipping" if 0 < len(bad) < len(check.bad_params) else ""
        self._collect(optimizer, pairs)
        self._investigate(check, bad, microbatches, optimizer, clip)
        self._add_rows(check, parameters)
        if self._refused(check):
            self._seams.imposing.after_update(self._updating(optimizer, parameters, (), check))
            return None
        used = self._seams.imposing.impose(optimizer, parameters, gradients, self._step)
        self._update = update = self._updating(optimizer, parameters, _paired(parameters, used), check)
        self._seams.tell("before_update", update)
        row = self._clip_results.row(update, context.clock.next_order)
        self._rows += [*self._seams.observers.collected(), *([] if row is None else [row])]
        return used

    def _begin_update(self, parameters: Sequence[Any], optimizer: Any) -> int:
        """Return the step of an update; one of an optimizer that takes the place of one that is gone is a new one."""
        for key in [key for key, ref in self._alive.items() if ref() is None]:
            del self._alive[key]
            self._context.clock.forget(key)
        key = _key(parameters, optimizer)
        self._alive[key] = weakref.ref(optimizer)
        return self._context.clock.begin_update(key)

    def _updating(
        self, optimizer: Any, parameters: Sequence[Any], pairs: Sequence[tuple[Any, Any]], check: Check
    ) -> Due:
        microbatches = tuple(self._context.tape.microbatches)
        return Due(
            step=self._step, optimizer=optimizer, parameters=parameters, gradients=pairs, microbatches=microbatches,
            check=check, norm=self._norm, scale=self.scale.carried(microbatches),
            scaled=self.scale.used(optimizer, pairs),
        )  # fmt: skip

    def after(self, optimizer: Any) -> None:
        """Check the parameters and write the step: the optimizer has updated them."""
        check, update = self._check, self._update
        if check is None or update is None:
            return
        with self.timed:
            self._seams.tell("after_update", update)
            self._parameters.after(optimizer, self._step, check, self._healthy_steps)
        self._end(check, skipped=False)

    def skipped(self, optimizer: Any = None) -> None:
        """Write a skipped step: nobody uses the gradients of the micro-batches so far."""
        microbatches = tuple(self._context.tape.microbatches)
        with self.timed:
            self._finding = self._parameters.read() or self._finding
            weights = list(microbatches[0].weights) if microbatches else []
            self._step = self._context.clock.begin_update(_key(weights, optimizer))
            check = self.sentinel.of_microbatches(microbatches, self.scale.carried(microbatches))
            self._check, self._norm = check, check.total_norm
            self._lr = learning_rate(optimizer) if optimizer is not None else self._lr
            self._collect(None, ())
            self._investigate(check, check.bad_params, microbatches, None, "")
            self._add_rows(check, weights)
            self._tell_skipped(check, weights, optimizer)
        self._end(check, skipped=True)

    def _tell_skipped(self, check: Check, weights: Sequence[Any], optimizer: Any) -> None:
        """Tell observers of an update that the loss scaler left out, as in torch."""
        update = self._updating(optimizer or self._owners.of(weights), weights, (), check)
        update.skipped = True
        self._rows += self._seams.observers.before_update(update)
        self._rows += self._seams.observers.after_update(update)

    def before_compiled(self, optimizer: Any) -> None:
        """Note the learning rate before a step that may be one compiled graph: a schedule has moved on after it."""
        with self.timed:
            self._lr = learning_rate(optimizer) if optimizer is not None else None

    def compiled(self, result: Outcome, optimizer: Any) -> None:
        """Write a step that ran as one compiled graph: only what it returned and what its dump tells is known."""
        with self.timed:
            self._step = self._context.clock.begin_update(_key([], optimizer))
            self.scale.value, self.scale.in_loss = result.scale, None
            self.scale.told = None if result.scale is None else (result.scale, result.scaler)
            check = Check(losses=[] if result.loss is None else [result.loss])
            self._check, self._norm = check, None
            if optimizer is not None:
                self._facts.note(optimizer, 1, result.scale)
            self._investigate(check, [], (), None, "")
            self._add_rows(check, [], is_compiled=True)
            found = self._parameters.after_graph(optimizer, self._step, check, self._healthy_steps)
            self._finding = self._finding or found
        self._end(check, skipped=result.skipped, n_microbatches=1)

    def refused(self) -> None:
        """End the step as skipped: its update was refused."""
        if self._check is not None:
            self._end(self._check, skipped=True)

    def cut_off(self) -> None:
        """Write what there is of a step: training ends after one of its micro-batches."""
        context = self._context
        self._collect(None, ())
        self.flush(StepRecord(step=context.clock.step, n_microbatches=context.clock.microbatch))
        context.tape.clear()

    def at_end(self) -> None:
        """Write micro-batches that no update followed: the program gave up on them, or ends."""
        microbatches = tuple(self._context.tape.microbatches)
        found, rows = self._parameters.at_end()
        self._finding, self._rows = found or self._finding, [*self._rows, *rows]
        self._seams.tell("at_end")
        self._rows += self._seams.observers.collected()
        check = self.sentinel.of_microbatches(microbatches, self.scale.carried(microbatches))
        if microbatches and not (check.loss_finite and not check.bad_params):
            self._step, self._check, self._norm = self._context.clock.step, check, check.total_norm
            self._investigate(check, check.bad_params, microbatches, None, "")
            self._add_rows(check, list(microbatches[0].weights))
            self._end(check, skipped=True)
        elif self._rows or self._finding:
            self.flush(None)

    def flush(self, record: StepRecord | None) -> None:
        """Write the rows that are not written yet."""
        with self.timed:
            rows, self._rows = self._rows, []
            self._place.keep()
            self._output.write(rows, record)

    def _collect(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        self._rows += self._seams.levels.collect(self._step, optimizer, pairs)

    def _investigate(
        self, check: Check, bad: Sequence[str], microbatches: Sequence[GradCall], optimizer: Any, clip: str
    ) -> None:
        investigator = self._seams.investigator
        if check.loss_finite and not check.bad_params:
            investigator.went_well(check, self._step, self.scale.value)
            self._healthy_steps += 1
            return
        if self._parameters.poisoned:
            return
        failed = Failed(
            step=self._step, check=check, bad_params=tuple(bad), microbatches=tuple(microbatches), optimizer=optimizer,
            scale=self.scale.value, clip=clip, healthy_steps=self._healthy_steps,
            is_loss_scaled=any(call.scale is not None and call.scale.in_loss for call in microbatches),
        )  # fmt: skip
        with self._context.paused():  # all that it runs, also operators by themselves
            self._finding = investigator.investigate(failed) or self._finding

    def _add_rows(self, check: Check, parameters: Sequence[Any], *, is_compiled: bool = False) -> None:
        have = {row.site for row in self._rows if row.phase == "grad"}  # in full, when parameters are due
        rows = self.sentinel.readings(check, self._step, parameters)
        self._rows += [row for row in rows if row.site not in have]
        scalars = scalar_rows(
            check, self._step, scale=self.scale.in_loss, norm=self._norm, lr=self._lr, scaler=self.scale.told,
            next_order=self._context.clock.next_order,
        )  # fmt: skip
        self._rows += [row for row in scalars if not (is_compiled and row.site == "grad_norm")]

    def _unclipped(self, raw: Check, check: Check, names: set[str], microbatches: Sequence[GradCall]) -> float | None:
        """Return the L2 norm before clipping, without the loss scale, from the gradients as backward left them."""
        if self._clip_norm is not None:
            return self._clip_norm
        carried = self.scale.carried(microbatches)
        if len(microbatches) == 1 and names == set(raw.grad_norms) and self._context.rank()[1] == 1:
            return raw.total_norm / carried
        return check.total_norm

    def _refused(self, check: Check) -> bool:
        """Do what the user chose for a step that failed: stop training, or return whether the update is left out."""
        config = self._context.config
        if (check.loss_finite and not check.bad_params) or self.scale.value is not None:
            return False
        if config.on_finding == "stop":
            self._end(check, skipped=True)
            self._context.warn(f"stopped at step {self._step}, as asked for (--on-finding stop)")
            self._close()
            raise StopTraining(1)
        if config.on_finding == "skip":
            self._context.warn("skipped an update whose gradients were not finite, as asked for (--on-finding skip)")
            return True
        return False

    def _end(self, check: Check, *, skipped: bool, n_microbatches: int = 0) -> None:
        self._seams.tell("end_step", self._step)
        self._rows += self._seams.observers.collected()
        with self.timed:
            graph = self._seams.graphs.collect(
                self._step, scale=self.scale.value, skipped=skipped, healthy_steps=self._healthy_steps,
                finding=self._finding,
            )  # fmt: skip
            self._rows = merged(self._rows, graph.rows)
        told = graph.record or StepRecord(step=self._step)
        loss = check.mean_loss(self.scale.in_loss)
        n_microbatches = max(told.n_microbatches, n_microbatches) or len(self._context.tape.microbatches)
        record = StepRecord(
            step=self._step,
            n_microbatches=n_microbatches,
            loss=loss if loss is not None else told.loss,
            grad_norm=self._norm,
            loss_scale=self.scale.value,
            lr=self._lr if self._lr is not None else told.lr,
            skipped=skipped,
            n_bad_grads=max(len(check.bad_params), told.n_bad_grads),
            finding=graph.finding or self._finding,
            **self._times.end_step(),
        )
        self.flush(record)
        self.n_usual = max(n_microbatches, 1)
        self._context.tape.clear()
        self._context.clock.end_update()
        self._check, self._update, self._norm, self._clip_norm, self._finding = None, None, None, None, ""
        self.scale.end_step()


def merged(rows: Sequence[Reading], of_graph: Sequence[Reading]) -> list[Reading]:
    """Join the rows of a step and those of its dump: the loss as Python saw it, all else as it was dumped."""
    seen = {(row.phase, row.site, row.port) for row in rows if row.phase == "loss"}
    kept = [row for row in of_graph if (row.phase, row.site, row.port) not in seen]
    have = {(row.phase, row.site, row.port, row.microbatch) for row in kept}
    return [*(row for row in rows if (row.phase, row.site, row.port, row.microbatch) not in have), *kept]


def _paired(parameters: Sequence[Any], gradients: Sequence[Any]) -> list[tuple[Any, Any]]:
    if len(parameters) != len(gradients):
        return []
    return [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]


def _key(parameters: Sequence[Any], optimizer: Any) -> int:
    """Identify an optimizer, also in a step skipped before any was seen, by its first parameter."""
    if not parameters and optimizer is not None:
        parameters = parameters_of(optimizer)
    return id(parameters[0]) if parameters else 0


def _scaled(check: Check, scale: float) -> Check:
    """Return the same check with a loss scale taken out of the norms."""
    norms = {name: norm / scale if math.isfinite(norm) else norm for name, norm in check.grad_norms.items()}
    return Check(losses=check.losses, grad_norms=norms, bad_params=check.bad_params, newly_dead=check.newly_dead)


class ClipResults:
    """Remembers which gradients the clips of a step were given, until its update."""

    def __init__(self) -> None:
        self._given: list[Sequence[Any]] = []
        self._n_looked = self._n_in_vain = 0

    def clips(self, gradients: Sequence[Any]) -> None:
        """Remember gradients that are about to be clipped."""
        if self._n_looked < LOOKED:
            self._given.append(gradients)

    def row(self, update: Update, next_order: Callable[[], int]) -> Reading | None:
        """Return a row if each of the first updates with a clip used the very tensors that the clip was given."""
        given, self._given = self._given, []
        if not given or not update.gradients or self._n_looked >= LOOKED:
            return None
        self._n_looked += 1
        unclipped = {id(gradient) for gradients in given for gradient in gradients}
        self._n_in_vain += all(id(gradient) in unclipped for _, gradient in update.gradients)
        if self._n_in_vain < LOOKED:
            return None
        row = number_row(SITE, CLIPPED_IN_VAIN, update.step, next_order(), LOOKED, module=THROWN_AWAY)
        return replace(row, call=len(update.gradients))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss of a compiled step, and what a cell with loss scaling returns beside it."""

    loss: float | None = None
    skipped: bool = False
    scale: float | None = None
    scaler: str = ""


def outcome(cell: Any, outputs: Any) -> Outcome:
    """Read from what a training cell returned: its loss first, then of TrainOneStepWithLossScaleCell flag and scale."""
    loss = next((number for t in tensors(outputs) if (number := _number(t)) is not None), None)
    if not isinstance(cell, nn.TrainOneStepWithLossScaleCell) or not isinstance(outputs, tuple) or len(outputs) < 3:
        return Outcome(loss=loss)
    flag, scale = _number(outputs[1]), _number(outputs[2])
    manager = getattr(cell, "loss_scaling_manager", None)
    kind = type(manager if manager is not None else cell).__name__
    return Outcome(loss=loss, skipped=bool(flag), scale=scale, scaler=kind)


def _number(value: Any) -> float | None:
    """Return a number or the mean of a tensor, as a loss of several elements; None for anything else."""
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, ms.Tensor) and value.size:
        return float(value.asnumpy().astype("float64").mean())
    return None
