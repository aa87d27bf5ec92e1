"""The boundary between two steps: check the gradients, agree, investigate, act, update, write it down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch

from hypocenter.nouns import Reading, StepRecord
from hypocenter.session.agreement import Meeting
from hypocenter.session.check import Check, scalar_reading
from hypocenter.session.failures import Decision
from hypocenter.session.guard import StopTraining
from hypocenter.session.learning_rate import learning_rate
from hypocenter.session.observer import Update
from hypocenter.session.parts import Parts
from hypocenter.session.scalars import scalar_rows
from hypocenter.tap.quiet import quietly
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, gradients_of


class Boundary:
    """What is known of the step under way, and what is done before and after its update.

    Args:
        close: ends the session, when the user wants training to stop.

    Attributes:
        scale: of the loss in this step, None without a scaler.
        is_skipped: the optimizer leaves the parameters as they are in this step.
        rows: that are not written yet.
    """

    def __init__(self, parts: Parts, close: Callable[[], None]) -> None:
        self._parts, self._close = parts, close
        self._clip_bad: list[str] | None = None
        self._unclipped_norm: float | None = None
        self._check: Check | None = None
        self._update: Update | None = None
        self._meeting: Meeting | None = None
        self._step = 0
        self.scale: float | None = None
        self.is_skipped = False
        self.rows: list[Reading] = []
        self._finding = ""
        self._step_started = time.perf_counter()
        self._tap_s = 0.0

    @contextlib.contextmanager
    def timed(self) -> Generator[None, None, None]:
        """What runs in here is time that Hypocenter took."""
        started = time.perf_counter()
        try:
            with quietly():
                yield
        finally:
            self._tap_s += time.perf_counter() - started

    def clips(self, parameters: list[torch.Tensor]) -> None:
        """Gradients are about to be clipped, which spreads one NaN to all: note who had it."""
        held = [(p, p.grad) for p in parameters if p.grad is not None]
        before = self._parts.sentinel.gradients(held, (), remember=False)
        self._clip_bad = before.bad_params or self._clip_bad
        self._unclipped_norm = before.total_norm
        self._parts.observers.before_clip(parameters, before)

    @property
    def step(self) -> int:
        """The step of the update under way, or of the last one."""
        return self._step

    @property
    def is_bad(self) -> bool:
        """Whether this step's gradients are not finite here."""
        return bool(self._check and self._check.bad_params)

    def before(
        self, optimizer: Any, scaled: ScaledUpdate | None, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    ) -> None:
        """An optimizer is about to step: check, agree with the other ranks, investigate what failed."""
        self._parts.where.note("check")
        self._parts.roots.reset()
        self._finding = self._parts.parameter_check.read() or self._finding
        self.rows = self._parts.resumption.before_update(optimizer, self.rows)
        self._step = self._parts.clock.begin_update(id(optimizer))
        is_wrapper = not isinstance(optimizer, torch.optim.Optimizer)
        if not gradients:
            gradients = gradients_of(optimizer) if scaled is None else scaled.gradients
        parameters = [p for p, _ in gradients] if is_wrapper else _parameters(optimizer)
        check = self._parts.sentinel.gradients(gradients, self._parts.tape.microbatches, scale=_scale_left_in(scaled))
        if self._unclipped_norm is None:
            self._unclipped_norm = check.total_norm
        if not check.loss_finite:
            self._finding = self._parts.parameter_check.look_back(parameters) or self._finding
        self.rows += self._parts.levels.collect(self._step, [optimizer])
        rank, world_size = self._parts.rank()
        decision = self._parts.failures.decide(
            check,
            self._step,
            self._parts.tape.microbatches,
            rank=rank,
            world_size=world_size,
            scale=self.scale,
            clip_bad=self._clip_bad,
            readings=self.rows,
        )
        self._parts.council.begin(
            self._step,
            failed=decision.asks,
            suspect=not decision.is_healthy,
            poisoned=self._parts.failures.poisoned,
            communicates=lambda: self._parts.communication.seen() or self._parts.replayer.needs_all(),
        )
        have = {row.site for row in self.rows if row.phase == "grad"}  # in full, when parameters are due
        self.rows += [r for r in self._parts.sentinel.readings(check, self._step, parameters) if r.site not in have]
        state = None if scaled is None else scaled.state
        self.rows += scalar_rows(
            check, self._step, scale=self.scale, norm=self._unclipped_norm, lr=learning_rate(optimizer),
            scaler=None if state is None else (state.scale, state.kind), next_order=self._parts.clock.next_order,
        )  # fmt: skip
        if self._parts.council.waits:
            with self._parts.where.during("agree"):
                self._meeting = self._parts.council.end()
        else:
            self._meeting = self._parts.council.end()
        self._finding = self._followed(decision) or self._finding
        self.rows += [*self._parts.replay_rows.collect(self._step), *self._parts.council.take_rows()]
        self._check = check
        self._update = Update(
            step=self._step,
            optimizer=optimizer,
            parameters=parameters,
            gradients=gradients,
            microbatches=self._parts.tape.microbatches,
            check=check,
            scaled=scaled,
        )
        self.rows += self._parts.observers.before_update(self._update)
        self._parts.where.note("update")

    def _followed(self, decision: Decision) -> str:
        """Investigate on this rank, on all ranks if one asks for it, or not at all where it is a consequence."""
        meeting = self._meeting
        if meeting is None or not meeting.failed:
            return self._parts.failures.follow(decision, None)
        return "" if meeting.poisoned else self._parts.failures.follow(decision, self._parts.council.table())

    def act(self, optimizer: Any, plain: PlainUpdate | None = None) -> None:
        """The user's choice of what to do at a step that failed."""
        check = self._check
        is_bad_elsewhere = self._meeting is not None and self._meeting.suspect
        is_fine = check is None or (check.loss_finite and not check.bad_params and not is_bad_elsewhere)
        if check is None or is_fine or self.scale is not None:
            return
        if self._parts.config.on_finding == "skip":
            if plain is not None:
                plain.is_refused = True  # the gradients that count are copies, made inside the step
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self.is_skipped = True
            self._parts.warn("skipped an update whose gradients were not finite, as asked for (--on-finding skip)")
        elif self._parts.config.on_finding == "stop":
            self.flush(self._record(optimizer, check))
            self._parts.warn(f"stopped at step {self._step}, as asked for (--on-finding stop)")
            self._parts.tape.clear()
            self._close()
            raise StopTraining(1)

    def after(self, optimizer: torch.optim.Optimizer) -> None:
        """It has stepped, or skipped."""
        with self.timed():
            check, update = self._check, self._update
            if check is None or update is None:
                return
            if self._parts.parameter_check.start(update.parameters, optimizer, self._step, check):
                self._finding = self._parts.parameter_check.read() or self._finding
            update.skipped = self.is_skipped
            self.rows += self._parts.observers.after_update(update)
        self.flush(self._record(optimizer, check))
        self._parts.tape.clear()
        self._parts.live_trace.end_step()
        self._parts.clock.end_update()
        self._check, self._update, self._clip_bad, self._unclipped_norm = None, None, None, None
        self.is_skipped, self.scale, self._finding = False, None, ""
        self._parts.where.note("outside")

    def _record(self, optimizer: torch.optim.Optimizer, check: Check) -> StepRecord:
        now = time.perf_counter()
        record = StepRecord(
            step=self._step,
            n_microbatches=len(self._parts.tape.microbatches),
            loss=sum(check.losses) / len(check.losses) / (self.scale or 1.0) if check.losses else None,
            grad_norm=self._unclipped_norm,
            loss_scale=self.scale,
            lr=learning_rate(optimizer),
            skipped=self.is_skipped,
            step_ms=1000.0 * (now - self._step_started),
            tap_ms=1000.0 * self._tap_s,
            n_bad_grads=len(check.bad_params),
            finding=self._finding,
        )
        self._step_started, self._tap_s = now, 0.0
        return record

    def flush(self, record: StepRecord | None) -> None:
        """Write what there is."""
        with self.timed():
            rows, self.rows = self.rows, []
            self._parts.place.keep()
            self._parts.output.write(rows, record)
            if self._parts.output.is_broken:
                self._parts.where.not_recording()

    def at_end(self) -> None:
        """A loss that was not finite and that no update followed: the program gave up on it, or is about to end."""
        self._parts.parameter_check.restart()
        self._finding = self._parts.parameter_check.read() or self._finding
        self._parts.roots.suspend_loss_mode()
        self._parts.tape.close_unused_loss(self._parts.clock.microbatch, self._parts.clock.batch)
        losses = [float(v) for m in self._parts.tape.microbatches for v in m.values]
        check = Check(losses=losses)
        if losses and not check.loss_finite:
            self._step = self._parts.clock.step
            rank, world_size = self._parts.rank()
            decision = self._parts.failures.decide(
                check, self._step, self._parts.tape.microbatches, rank=rank, world_size=world_size, scale=None,
                clip_bad=self._clip_bad, readings=[],
            )  # fmt: skip
            self._finding = self._parts.failures.follow(decision, None)
            self.rows += self._parts.replay_rows.collect(self._step)
            self.rows += [scalar_reading("loss", "loss", v, self._step, i) for i, v in enumerate(losses)]
            self.flush(StepRecord(step=self._step, n_microbatches=len(losses), loss=losses[0], finding=self._finding))
        elif self.rows or self._finding:
            self.flush(None)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _scale_left_in(scaled: ScaledUpdate | None) -> float:
    return 1.0 if scaled is None or scaled.is_unscaled else scaled.state.scale or 1.0
