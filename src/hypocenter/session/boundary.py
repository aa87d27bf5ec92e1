"""The boundary between two steps: check the gradients, agree, investigate, act, update, write it down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.norm_rows import NormRows
from hypocenter.session.agreement import Meeting
from hypocenter.session.by_hand import ByHand
from hypocenter.session.check import Check, scalar_reading
from hypocenter.session.evaluations import Evaluations
from hypocenter.session.failures import Decision
from hypocenter.session.guard import StopTraining
from hypocenter.session.learning_rate import decays, learning_rate
from hypocenter.session.observer import Update
from hypocenter.session.parts import Parts
from hypocenter.session.scalars import scalars_of
from hypocenter.session.shared_backward import SharedBackward
from hypocenter.session.step_times import StepTimes
from hypocenter.tap.grad_scaler import parameters_of
from hypocenter.tap.gradients import Gradients
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate

DENSE, EVERY = 64, 16  # steps at whose end a rank looks where it stands among the others: each at first, then one in 16


class Boundary:
    """What is known of the step under way, and what is done before and after its update.

    Args:
        close: ends the session, when the user wants training to stop.

    Attributes:
        step: of the update under way, or of the last one.
        scale: of the loss in this step, None without a scaler.
        is_skipped: the optimizer leaves the parameters as they are in this step.
        rows: that are not written yet.
    """

    def __init__(self, parts: Parts, close: Callable[[], None]) -> None:
        self._parts, self._close = parts, close
        self._clip_bad: list[str] | None = None
        self._unclipped: Check | None = None  # the first look of this update, or the one that the last clip gave
        self._check: Check | None = None
        self._update: Update | None = None
        self._meeting: Meeting | None = None
        self.step = 0
        self.scale: float | None = None
        self.is_skipped = False
        self.rows: list[Reading] = []
        self._generation = -1  # of the names, when the rank last looked where it stands
        self._norms: NormRows | None = None  # of this update's gradients
        self._n_collected = 0  # of these, rows that do not depend on whether an update follows
        self._finding = ""
        self._evaluations = Evaluations(parts.names, parts.clock)
        self._bad_evaluation: Check | None = None  # of this update: what comes after it in the update is a consequence
        self._held_rows: list[Reading] = []  # of that one, until its step is known
        self._shared = SharedBackward(parts.optimizers.all, parts.names)
        self._is_ahead_held = False  # a finding about gradients that the optimizer that holds them has not used yet
        self._is_scaling = False
        self._times = StepTimes()
        self.timed = self._times

    def clips(self, parameters: list[torch.Tensor], max_norm: float) -> None:
        """Note which gradients are not finite before they are clipped, as clipping spreads one NaN to all of them."""
        parameters = list(parameters)  # one list for each clip: observers know it by that
        held = Gradients.of(parameters)

        def told(before: Check) -> None:
            self._clip_bad = before.bad_params or self._clip_bad
            self._unclipped = before
            observers.tell("seen_before_clip", parameters, before)

        observers = self._parts.observers
        observers.tell("before_clip", parameters, max_norm)
        self._parts.sentinel.look_before_change(
            held, told, is_urgent=observers.are_urgent, with_peaks=observers.may_scale
        )

    @property
    def is_updating(self) -> bool:
        """Whether an optimizer is in its step: what is computed now are further evaluations of its closure."""
        return self._check is not None

    def begins_backward(self) -> None:
        """Forget backward passes from before the parameters were moved: they can neither be added up nor replayed."""
        self._drop_ahead()
        if self._evaluations.have_moved():
            self._parts.tape.microbatches.clear()

    def ends_backward(self) -> None:
        """Check what this backward computed, in a program that moves its parameters before the update."""
        evaluations = self._evaluations
        if not (evaluations.moves or evaluations.is_learning):
            return
        evaluations.after_backward()
        if self._is_scaling or self._parts.rank()[1] > 1:
            return
        if evaluations.moves:
            self.evaluated([(p, p.grad) for _, p in self._parts.names.parameters() if p.grad is not None])
        elif self._has_optimizer_of_the_user():
            self.evaluated([])

    def _has_optimizer_of_the_user(self) -> bool:
        """Return whether an optimizer class of the user's own updates these models (not others of the process)."""
        own = {id(p) for _, p in self._parts.names.parameters()}
        others = [o for o in self._parts.optimizers.all() if _is_of_the_user(o)]
        return any(id(p) in own for o in others for group in o.param_groups for p in group["params"])

    def evaluated(self, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Investigate a loss and gradients beside those that the update begins with, if they are not finite.

        Args:
            gradients: (parameter, gradient).
        """
        parts = self._parts
        check = parts.sentinel.gradients(gradients, parts.tape.microbatches, remember=False)
        if check.is_finite or self._bad_evaluation is not None or not (self._check is None or self._check.is_finite):
            return
        self._bad_evaluation = check
        step = self.step if self.is_updating else parts.clock.step
        parts.roots.suspend()
        with parts.failures.holding():
            parts.failures.follow(self._decided(check, step, None, []), None)
        self._held_rows = [
            *parts.replay_rows.collect(step),
            *(scalar_reading("loss", "loss", v, step, parts.clock.next_order(), i) for i, v in enumerate(check.losses)),
            *(r for r in parts.sentinel.rows(check, step, [p for p, _ in gradients]) if r.summary.n_nonfinite),
        ]
        if self.is_updating:
            self._take_evaluation()

    def _take_evaluation(self) -> None:
        """Write what was held back of an evaluation that failed, as the step that it belongs to is known now."""
        self._finding = self._parts.failures.release(self.step) or self._finding
        self.rows += [replace(row, step=self.step) for row in self._held_rows]
        self._held_rows = []

    def _drop_evaluation(self) -> None:
        """Forget an evaluation that was judged before its loss scale was known: the step is judged again, with it."""
        self._parts.failures.drop()
        self._held_rows, self._bad_evaluation = [], None

    def _decided(self, check: Check, step: int, scale: float | None, readings: Sequence[Reading]) -> Decision:
        """Decide what to do about this step, and note if parameters were bad before it, which explains it then."""
        parts = self._parts
        found, of_parameters = parts.parameter_check.look_back(check)
        self._finding = found or self._finding
        if not check.is_finite:
            parts.failures.poisoned = parts.failures.poisoned or self._has_failed_before(check)
        rank, world_size = parts.rank()
        check.unclipped = self._unclipped if self._unclipped is not check else None
        decision = parts.failures.decide(
            check, step, parts.tape.microbatches, rank=rank, world_size=world_size, scale=scale,
            clip_bad=self._clip_bad, readings=readings,
        )  # fmt: skip
        decision.facts.update(of_parameters)
        return decision

    def _has_failed_before(self, check: Check) -> bool:
        return not check.is_finite and (self._bad_evaluation not in (None, check) or self._is_known_ahead(check))

    def _is_known_ahead(self, check: Check) -> bool:
        bad = check.bad_params if self._clip_bad is None else self._clip_bad
        return not check.is_finite and self._shared.knows(bad)

    def _drop_ahead(self) -> None:
        """Forget bad gradients that were found ahead of their optimizer's update: no optimizer has used them."""
        if self._is_ahead_held:
            self._is_ahead_held, self._held_rows = False, []
            self._parts.failures.drop()

    @property
    def is_bad(self) -> bool:
        """Whether this step's gradients are not finite here."""
        return bool(self._check and self._check.bad_params)

    def before(
        self, optimizer: Any, scaled: ScaledUpdate | None, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]] = (),
        *, has_gradients: bool = True,
    ) -> None:  # fmt: skip
        """Check the gradients before the update, agree with the other ranks, and investigate what failed."""
        self._parts.where.note("check")
        self._parts.roots.reset()
        if self._parts.resumption.is_pending:
            self.rows = self._parts.resumption.before_update(optimizer, self.rows)
        self._parts.parameter_check.let_go(optimizer)
        if isinstance(optimizer, torch.optim.Optimizer) and self._parts.clock.may_replace(id(optimizer)):
            self._forget_replaced(optimizer)
        self.step = self._parts.clock.begin_update(id(optimizer))
        self._is_scaling = self._is_scaling or scaled is not None
        if not self._is_ahead_held:
            if scaled is not None:
                self._drop_evaluation()
            if self._held_rows or self._parts.failures.kept:
                self._take_evaluation()
        if not isinstance(optimizer, ByHand) and self._evaluations.have_moved():
            for microbatch in self._parts.tape.microbatches:
                microbatch.why_not = "the parameters were moved after this backward and before the update"
        is_wrapper = not isinstance(optimizer, torch.optim.Optimizer)
        parameters = [] if is_wrapper else self._parts.parameter_check.known(optimizer, parameters_of(optimizer))
        if not gradients:
            gradients = scaled.gradients if scaled is not None else Gradients.of(parameters or parameters_of(optimizer))
        parameters = parameters or [p for p, _ in gradients]
        ahead = self._ahead_of(optimizer, scaled)
        unused = self._parts.tape.lost(self._parts.clock.microbatch, self._parts.clock.batch)
        check = self._parts.sentinel.gradients(
            gradients,
            self._parts.tape.microbatches,
            scale=None if scaled is None else _scale_left_in(scaled),
            ahead=ahead,
            unused=unused,
        )
        is_finite = check.is_finite
        broken = self._parts.parameter_check.read()  # norms of parameters came with those of the gradients
        self._finding = self._finding or broken
        self.scale = None if scaled is None else scaled.state.scale
        if self._is_ahead_held and self._is_known_ahead(check):
            self._is_ahead_held = False
            self._take_evaluation()
        if self._unclipped is None:
            self._unclipped = check
        self.rows += self._parts.levels.collect(self.step, [optimizer])
        self._n_collected = len(self.rows)
        check.lr, check.decays = learning_rate(optimizer), decays(optimizer)
        check.local_norm = self._parts.local.take(self.scale or 1.0)
        both = check if check.ahead is None else check.with_ahead()
        decision = self._decided(both, self.step, self.scale, self.rows)
        self._parts.council.begin(
            self.step,
            failed=decision.asks,
            suspect=not is_finite,
            poisoned=self._parts.failures.poisoned,
            communicates=lambda: self._parts.communication.seen() or self._parts.replayer.needs_all(),
        )
        state = None if scaled is None else scaled.state
        kinds, numbers = scalars_of(
            check, scale=self.scale, norm=self._unclipped.total_norm, lr=check.lr,
            scaler=None if state is None else (state.scale, state.kind),
        )  # fmt: skip
        norms = self._parts.sentinel.rows(check, self.step, parameters, kinds, numbers)
        if self.rows and (have := {row.site for row in self.rows if row.phase == "grad"}):  # when parameters are due
            self.rows += [row for row in norms if row.site not in have]
        else:
            self._norms = norms
        self._meeting = None
        if self._parts.council.waits:
            with self._parts.where.during("agree"):
                self._meeting = self._parts.council.end()
        if is_finite and not decision.is_healthy:
            self._follow_ahead(decision)
        else:
            self._finding = self._followed(decision) or self._finding
        if is_finite and unused:
            rank, world_size = self._parts.rank()
            for microbatch, loss in zip(unused, check.unused, strict=True):
                if not math.isfinite(loss):
                    found = self._parts.failures.of_unused_loss(microbatch, self.step, rank, world_size)
                    self._finding = self._finding or found
        if check.ahead is not None:
            self._shared.looked_into(check.ahead)
        self.rows += [*self._parts.replay_rows.collect(self.step), *self._parts.council.take_rows()]
        self._check = check
        self._update = Update(
            step=self.step,
            optimizer=optimizer,
            parameters=parameters,
            gradients=gradients if has_gradients else (),
            microbatches=self._parts.tape.microbatches,
            check=check,
            scaled=scaled,
        )
        self.rows += self._parts.observers.before_update(self._update)
        self._parts.where.note("update")

    def _forget_replaced(self, optimizer: Any) -> None:
        """Wait no more for optimizers whose parameters, or ones just like them, a new one is about to update.

        They may live on: schedules hold them, and so do cycles. Those of one round that share parameters are not meant.
        """
        clock, own = self._parts.clock, parameters_of(optimizer)
        ids, shapes = set(map(id, own)), [p.shape for p in own]
        for other in self._parts.optimizers.all():
            if clock.has_come_round(id(other)):
                theirs = parameters_of(other)
                if not ids.isdisjoint(map(id, theirs)) or shapes == [p.shape for p in theirs]:
                    clock.forget(id(other))

    def _ahead_of(self, optimizer: Any, scaled: ScaledUpdate | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return gradients that other optimizers will use after this update; none with a loss scaler."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            return []
        is_first = bool(self._parts.tape.microbatches or self._parts.clock.microbatch)
        ahead = self._shared.begin_update(optimizer, is_first=is_first)
        return [] if scaled else ahead

    def _follow_ahead(self, decision: Decision) -> None:
        """Investigate bad gradients of another optimizer now, and keep the result until that optimizer steps."""
        with self._parts.failures.holding():
            self._followed(decision)
        self._held_rows = self._parts.replay_rows.collect(self.step)
        self._is_ahead_held = True

    def _followed(self, decision: Decision) -> str:
        """Investigate on this rank, or on all ranks if one asks for it; return the evidence's id, or "" without any."""
        meeting = self._meeting
        if meeting is None or not meeting.failed:
            return self._parts.failures.follow(decision, None)
        return "" if meeting.poisoned else self._parts.failures.follow(decision, self._parts.council.table())

    def act(self, optimizer: Any, plain: PlainUpdate | None = None) -> None:
        """Do what the user chose (`on_finding`) at a step that failed: go on, skip it, or stop training."""
        check = self._check
        is_bad_elsewhere = self._meeting is not None and self._meeting.suspect
        is_fine = check is None or (check.is_finite and not is_bad_elsewhere)
        if check is None or is_fine or self.scale is not None:
            return
        if self._parts.config.on_finding == "skip":
            if plain is not None:
                plain.is_refused = True  # the gradients that count are copies, made inside the step
            if isinstance(optimizer, ByHand) and self._update is not None:
                for _, gradient in self._update.gradients:
                    gradient.zero_()  # which the program is about to use
            else:
                for parameter in parameters_of(optimizer):
                    parameter.grad = None
            self.is_skipped = True
            self._parts.warn("skipped an update whose gradients were not finite, as asked for (--on-finding skip)")
        elif self._parts.config.on_finding == "stop":
            self.flush(self._record(optimizer, check))
            self._parts.warn(f"stopped at step {self.step}, as asked for (--on-finding stop)")
            self._parts.tape.clear()
            self._close()
            raise StopTraining(1)

    def after(self, optimizer: Any, *, is_late: bool = False) -> None:
        """Check the parameters and write the step: the optimizer has updated them, or skipped the update.

        Args:
            is_late: that has been seen only now, as the next step begins.
        """
        with self.timed:
            check, update = self._check, self._update
            if check is None or update is None:
                return
            is_suspect = not self.is_skipped and not (check.is_finite and self._bad_evaluation is None)
            if self._parts.parameter_check.start(update.parameters, optimizer, self.step, is_suspect=is_suspect):
                self._finding = self._parts.parameter_check.read() or self._finding
            update.skipped = self.is_skipped
            self.rows += self._parts.observers.after_update(update)
            self._parts.roots.user_code.forget_writers()
            self._flush(self._record(optimizer, check))
        self._parts.clock.end_update()
        self._evaluations.end_update()
        self._check, self._update, self._clip_bad, self._unclipped = None, None, None, None
        self._bad_evaluation = None
        self.is_skipped, self.scale, self._finding = False, None, ""
        if not is_late:
            self.begin_step()

    def begin_step(self) -> None:
        """Begin a new step: what comes from here on belongs to it, or to an update by hand before it."""
        self._parts.begin_step()
        self._parts.tape.clear()
        self._parts.roots.prelude.clear()
        self._parts.live_trace.end_step()
        self._parts.where.note("outside")
        self._parts.roots.begin_step()

    def reopen(self, optimizer: Any) -> None:
        """Undo `before`, as no update followed: more is added to the same gradients, which are checked again then."""
        del self.rows[self._n_collected :]
        self._norms = None
        self._parts.clock.reopen(id(optimizer))
        self._check, self._update, self._clip_bad, self._unclipped = None, None, None, None

    def _record(self, optimizer: torch.optim.Optimizer, check: Check) -> StepRecord:
        return StepRecord(
            step=self.step,
            n_microbatches=max(len(self._parts.tape.microbatches), self._parts.clock.microbatch),
            loss=check.mean_loss(self.scale),
            grad_norm=None if self._unclipped is None else self._unclipped.total_norm,
            loss_scale=self.scale,
            lr=learning_rate(optimizer),
            skipped=self.is_skipped,
            n_bad_grads=len((self._bad_evaluation or check).bad_params),
            finding=self._finding,
            **self._times.end_step(),
        )

    def flush(self, record: StepRecord | None) -> None:
        """Write the rows and norms that are not written yet."""
        with self.timed:
            self._flush(record)

    def _flush(self, record: StepRecord | None) -> None:
        rows, norms, self.rows, self._norms = self.rows, self._norms, [], None
        generation = self._parts.names.generation
        if record is None or self.step < DENSE or not self.step % EVERY or generation != self._generation:
            self._parts.place.keep()
            self._generation = generation
        self._parts.output.write(rows, record, norms)
        if self._parts.output.is_broken:
            self._parts.where.not_recording()

    def at_end(self) -> None:
        """Write a last loss that was not finite and that no update followed: the program gave up, or is ending."""
        self._finding = self._parts.parameter_check.at_end() or self._finding
        self._drop_ahead()
        self._parts.roots.suspend()
        self._parts.tape.close_unused_loss(self._parts.clock.microbatch, self._parts.clock.batch)
        if self._held_rows:
            self.step = self._parts.clock.step
            self._take_evaluation()
        values = [v for m in self._parts.tape.microbatches for v in m.values]
        losses = [float(v) for v in values if v.numel() == 1]
        check = Check(losses=[*losses, *(float(v.sum()) for v in values if v.numel() != 1)])
        if not check.loss_finite:
            self.step = self._parts.clock.step
            decision = self._decided(check, self.step, None, [])
            self._finding = self._parts.failures.follow(decision, None) or self._finding
            self.rows += self._parts.replay_rows.collect(self.step)
            self.rows += [scalar_reading("loss", "loss", v, self.step, i) for i, v in enumerate(losses)]
            self.flush(
                StepRecord(
                    step=self.step, n_microbatches=len(losses), loss=next(iter(losses), None), finding=self._finding
                )
            )
        elif self.rows or self._finding:
            self.flush(None)


def _is_of_the_user(optimizer: Any) -> bool:
    """Tell optimizers of the user's own from torch's, which never move a parameter before their step."""
    return not type(optimizer).__module__.startswith("torch.optim")


def _scale_left_in(scaled: ScaledUpdate) -> Callable[[], float]:
    """Return a function that tells the scale left in the gradients; call it after the transfer that brings it."""
    return lambda: 1.0 if scaled.is_unscaled else scaled.state.scale or 1.0
