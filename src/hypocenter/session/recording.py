"""The session of one process: listens to module calls, backward and updates; checks, records, replays what failed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.layout import rank_directory
from hypocenter.replay.engine import Replayer
from hypocenter.session.agreement import Council, Meeting
from hypocenter.session.communication import Communication
from hypocenter.session.failures import Decision, Failures
from hypocenter.session.frameworks import Frameworks
from hypocenter.session.guard import StopTraining, Warnings, guarded
from hypocenter.session.levels import Levels
from hypocenter.session.live_trace import LiveTrace
from hypocenter.session.observer import Context, Observers, Update
from hypocenter.session.output import Output
from hypocenter.session.parameter_check import ParameterCheck
from hypocenter.session.place import PlaceKeeper
from hypocenter.session.rank import rank_and_world_size
from hypocenter.session.replay_rows import ReplayRows
from hypocenter.session.resumption import Resumption
from hypocenter.session.scalars import learning_rate, scalar_rows
from hypocenter.session.sentinel import Check, Sentinel, scalar_reading
from hypocenter.session.whereabouts import WhereaboutsKeeper
from hypocenter.tap.clock import Clock
from hypocenter.tap.foreign_scalers import ForeignScalers
from hypocenter.tap.frameworks.door import Door
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.names import NameMap
from hypocenter.tap.roots import RootTap, owner_of
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, Unscaling, gradients_of
from hypocenter.tap.tape import Tape
from hypocenter.tap.updates import UpdateTap


class Session:
    """One recorded process. Attach, train, close. Nothing is written before the first step is over.

    Args:
        config: frozen options.
        directory: the run directory.
        owns_run: whether run.json is ours to write (`watch`) or the launcher's (`hypocenter run`).
    """

    def __init__(self, config: Config, directory: Path, *, owns_run: bool, command: tuple[str, ...] = ()) -> None:
        self.config, self.directory = config, directory
        self.is_off = False
        self.paused = False
        self.warn = Warnings()
        self.names = NameMap()
        self.clock = Clock()
        self.tape = Tape(config.keep_mb << 20)
        self._pid = os.getpid()
        self._roots = RootTap(self.tape, on_root=self._on_root, on_begin=self._on_begin, fail=self.warn)
        self._where = WhereaboutsKeeper(directory, self.clock, self.names, self._rank, self.warn)
        self._roots.on_end = lambda training: self._where.note("loss" if training else "outside")
        self._updates = UpdateTap(self)
        self._scalers = ForeignScalers(self._updates.scaled_step)
        self._sentinel = Sentinel(self.names, self.clock)
        self._levels = Levels(
            config, self.names, self.clock, self.warn, lambda: rank_directory(directory, self._rank()[0])
        )
        self._replay_rows = ReplayRows(config, self.names, self.warn)
        self._live_trace = LiveTrace(self.names, self.warn)
        self._replayer = Replayer(self.tape, self._replaying)
        self._failures = Failures(
            config,
            self.names,
            self._replayer,
            folder=lambda: rank_directory(self.directory, self._rank()[0]) / "bundles",
            rows=self._replay_rows,
            live=self._live_trace,
            warn=self.warn,
        )
        self._frameworks = Frameworks(
            Door(
                add_root=self.names.add_root,
                scaled_step=self._updates.scaled_step,
                plain_step=self._updates.plain_step,
                warn=self.warn,
            )
        )
        self._place = PlaceKeeper(directory, self.warn, self.names)
        self._resumption = Resumption(self.clock, self.warn)
        self._communication = Communication(self.names, lambda: self._roots.is_inside, self.warn)
        self._council = Council(is_wanted=config.agree, timeout_s=config.agree_timeout_s, warn=self.warn)
        self._observers = Observers(
            Context(
                config=config,
                names=self.names,
                clock=self.clock,
                tape=self.tape,
                replayer=self._replayer,
                label=self._sentinel.label,
                rank=self._rank,
                place=self._place.current,
                warn=self.warn,
                ride=self._sentinel.ride,
                council=self._council,
                recomputed=self._roots.recomputed,
                directory=directory,
            )
        )
        self._parameter_check = ParameterCheck(self._sentinel, self._failures, self._rank)
        self._output = Output(config, directory, self._rank, self.warn, owns_run=owns_run, command=command)
        self._undo: list[Callable[[], None]] = []
        self._clip_bad: list[str] | None = None
        self._unclipped_norm: float | None = None
        self._check: Check | None = None
        self._update: Update | None = None
        self._meeting: Meeting | None = None
        self._step = 0
        self._scale: float | None = None
        self._skipped = False
        self._rows: list[Reading] = []
        self._finding = ""
        self._step_started = time.perf_counter()
        self._tap_s = 0.0

    # life

    def attach(self) -> None:
        """Start listening."""
        self._undo = [
            self._where.attach(),
            self._place.attach(),
            self._roots.attach(),
            self._scalers.attach(),  # before updates: a hook may only take itself out while it is the last to run
            self._updates.attach(),
            self._levels.attach(),
            self._frameworks.attach(),
            self._observers.attach(),
            self._communication.attach(),
            self.names.close,
        ]

    def switch_off(self, reason: str, error: BaseException | None = None) -> None:
        """Something in Hypocenter failed: let go of everything, say so once."""
        self.is_off = True
        self._detach()
        self._council.close()
        self.warn(f"switched off after an internal error, training goes on ({reason})")
        if os.environ.get("HYPOCENTER_TRACEBACK") and error is not None:
            import traceback

            traceback.print_exception(type(error), error, error.__traceback__)

    def _detach(self) -> None:
        for undo in reversed(self._undo):  # patches on top of patches come off first
            with contextlib.suppress(Exception):
                undo()
        self._undo = []

    def close(self) -> None:
        """Check what no update has checked, write the rest, let go. Safe to call twice; nothing in a forked child."""
        if os.getpid() != self._pid or self._undo == []:
            return
        self._where.end()
        try:
            self._rows += self._observers.at_end()
            self._check_leftovers()
        finally:
            self._detach()
            self._output.close()
            self._council.close()
            self.is_off = True

    def forked(self) -> None:
        """In a forked child: a DataLoader worker trains nothing."""
        self.is_off = True
        self._council.forked()
        self._detach()

    def _rank(self) -> tuple[int, int]:
        return rank_and_world_size()

    @contextlib.contextmanager
    def _timed(self) -> Generator[None, None, None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._tap_s += time.perf_counter() - started

    @contextlib.contextmanager
    def _replaying(self) -> Generator[None, None, None]:
        """Nothing that a replay does may look like training."""
        self.paused = self._roots.paused = True
        try:
            with self._levels.paused(), self._where.during("replay"):
                yield
        finally:
            self.paused = self._roots.paused = False

    # module calls

    def _on_root(self, module: torch.nn.Module) -> None:
        self._frameworks.look()
        self.names.add_root(owner_of(module, sys._getframe(1)))
        self._levels.on_root(module)

    def _on_begin(self, training: bool) -> None:
        self._where.note("forward")
        self.clock.recording = training
        if training:
            self._levels.begin_microbatch()
            self._live_trace.begin_microbatch()

    # backward

    @guarded
    def before_backward(self, roots: list[torch.Tensor], seeds: list[Any], retain_graph: bool) -> None:
        """`backward` was called: a micro-batch is complete."""
        with self._timed():
            self._roots.suspend_loss_mode()
            self.clock.recording = True  # recomputes inside backward belong to this micro-batch
            self.tape.close_microbatch(self.clock.microbatch, self.clock.batch, roots, seeds)
            self._observers.before_backward(roots)
        self._where.note("backward")

    @guarded
    def after_backward(self) -> None:
        """Gradients of this micro-batch are accumulated."""
        with self._timed():
            self._observers.after_backward()
        self._levels.end_microbatch()
        self._live_trace.end_microbatch()
        batch = self.clock.batch
        self.clock.end_microbatch()
        self.clock.recording = False
        self._where.note("outside")
        if self.config.stop_after_batch is not None and batch >= self.config.stop_after_batch:
            self._flush(StepRecord(step=self.clock.step, n_microbatches=self.clock.microbatch))
            self.warn(f"stopped after batch {batch}, as asked for")
            self.close()
            raise StopTraining(0)

    @guarded
    def before_clip(self, parameters: list[torch.Tensor]) -> None:
        """Clipping spreads one NaN to all gradients: note who had it."""
        self._roots.drop_idle_loss_mode()
        with self._timed():
            held = [(p, p.grad) for p in parameters if p.grad is not None]
            before = self._sentinel.gradients(held, (), remember=False)
            self._clip_bad = before.bad_params or self._clip_bad
            self._unclipped_norm = before.total_norm
            self._observers.before_clip(parameters, before)

    # updates

    @guarded
    def before_unscale(self, unscaling: Unscaling) -> None:
        """The user takes the loss scale out of the gradients."""
        self._roots.drop_idle_loss_mode()
        with self._timed():
            self._observers.before_unscale(unscaling)

    @guarded
    def after_unscale(self, unscaling: Unscaling) -> None:
        """It is out."""
        with self._timed():
            self._observers.after_unscale(unscaling)

    @guarded
    def before_scaled_step(self, update: ScaledUpdate) -> None:
        """A loss scaler steps: gradients are scaled unless the user has unscaled them."""
        self._roots.drop_idle_loss_mode()
        self._scale = update.state.scale
        with self._timed():
            self._before(update.optimizer, update)
        self._act(update.optimizer)
        self._skipped = bool(self._check and self._check.bad_params)

    @guarded
    def after_scaled_step(self, update: ScaledUpdate) -> None:
        """The scaler has stepped or skipped."""
        if update.found_inf:  # else: what our own check saw
            self._skipped = any(update.found_inf.values())
        self._after(update.optimizer)

    @guarded
    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer is about to use the gradients; the parameters are still the ones the step started from."""
        if self._only_makes_state(optimizer):
            return
        self._scale = None
        with self._timed():
            self._before(optimizer, None)
        self._act(optimizer)

    @guarded
    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has updated."""
        self._after(optimizer)

    @guarded
    def before_plain_step(self, update: PlainUpdate) -> None:
        """A framework's own optimizer is about to step; there is no loss scale."""
        self._scale = None
        with self._timed():
            self._before(update.optimizer, None, update.gradients)
        self._act(update.optimizer, update)

    @guarded
    def after_plain_step(self, update: PlainUpdate) -> None:
        """It has updated, or found that it must not."""
        self._skipped = self._skipped or update.was_skipped
        self._after(update.optimizer)

    def watch_scaler(self, scaler: Any) -> None:
        """A loss scaler of the user's, of whatever class."""
        self._scalers.watch(scaler)

    def _only_makes_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """DeepSpeed and checkpoint loaders step once on zero gradients so that the optimizer makes its state."""
        if self.tape.microbatches or self.clock.microbatch:
            return False
        held = [g for _, grad in gradients_of(optimizer) if (g := local(grad)) is not None]
        return bool(held) and not any(to_host(norms(held)))

    def _before(
        self, optimizer: Any, scaled: ScaledUpdate | None, gradients: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()
    ) -> None:
        self._where.note("check")
        self._roots.reset()
        self._finding = self._parameter_check.read(self._check) or self._finding
        self._rows = self._resumption.before_update(optimizer, self._rows)
        self._step = self.clock.begin_update(id(optimizer))
        is_wrapper = not isinstance(optimizer, torch.optim.Optimizer)
        if not gradients:
            gradients = gradients_of(optimizer) if scaled is None else scaled.gradients
        parameters = [p for p, _ in gradients] if is_wrapper else _parameters(optimizer)
        check = self._sentinel.gradients(gradients, self.tape.microbatches, scale=_scale_left_in(scaled))
        if self._unclipped_norm is None:
            self._unclipped_norm = check.total_norm
        if not check.loss_finite:
            self._finding = self._parameter_check.look_back(parameters) or self._finding
        self._rows += self._levels.collect(self._step, [optimizer])
        rank, world_size = self._rank()
        decision = self._failures.decide(
            check,
            self._step,
            self.tape.microbatches,
            rank=rank,
            world_size=world_size,
            scale=self._scale,
            clip_bad=self._clip_bad,
            readings=self._rows,
        )
        self._council.begin(
            self._step,
            failed=decision.asks,
            suspect=not decision.is_healthy,
            poisoned=self._failures.poisoned,
            communicates=lambda: self._communication.seen() or self._replayer.needs_all(),
        )
        have = {row.site for row in self._rows if row.phase == "grad"}  # in full, when parameters are due
        self._rows += [r for r in self._sentinel.readings(check, self._step, parameters) if r.site not in have]
        state = None if scaled is None else scaled.state
        self._rows += scalar_rows(
            check, self._step, scale=self._scale, norm=self._unclipped_norm, optimizer=optimizer, scaler=state,
            next_order=self.clock.next_order,
        )  # fmt: skip
        if self._council.waits:
            with self._where.during("agree"):
                self._meeting = self._council.end()
        else:
            self._meeting = self._council.end()
        self._finding = self._followed(decision) or self._finding
        self._rows += [*self._replay_rows.collect(self._step), *self._council.take_rows()]
        self._check = check
        self._update = Update(
            step=self._step,
            optimizer=optimizer,
            parameters=parameters,
            gradients=gradients,
            microbatches=self.tape.microbatches,
            check=check,
            scaled=scaled,
        )
        self._rows += self._observers.before_update(self._update)
        self._where.note("update")

    def _followed(self, decision: Decision) -> str:
        """Investigate on this rank, on all ranks if one asks for it, or not at all where it is a consequence."""
        meeting = self._meeting
        if meeting is None or not meeting.failed:
            return self._failures.follow(decision, None)
        return "" if meeting.poisoned else self._failures.follow(decision, self._council.table())

    def _act(self, optimizer: Any, plain: PlainUpdate | None = None) -> None:
        """The user's choice of what to do at a step that failed."""
        check = self._check
        is_bad_elsewhere = self._meeting is not None and self._meeting.suspect
        is_fine = check is None or (check.loss_finite and not check.bad_params and not is_bad_elsewhere)
        if check is None or is_fine or self._scale is not None:
            return
        if self.config.on_finding == "skip":
            if plain is not None:
                plain.is_refused = True  # the gradients that count are copies, made inside the step
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
            self._skipped = True
            self.warn("skipped an update whose gradients were not finite, as asked for (--on-finding skip)")
        elif self.config.on_finding == "stop":
            self._flush(self._record(optimizer, check))
            self.warn(f"stopped at step {self._step}, as asked for (--on-finding stop)")
            self.tape.clear()
            self.close()
            raise StopTraining(1)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        with self._timed():
            check, update = self._check, self._update
            if check is None or update is None:
                return
            if self._parameter_check.start(update.parameters, optimizer, self._step):
                self._finding = self._parameter_check.read(check) or self._finding
            update.skipped = self._skipped
            self._rows += self._observers.after_update(update)
        self._flush(self._record(optimizer, check))
        self.tape.clear()
        self._live_trace.end_step()
        self.clock.end_update()
        self._check, self._update, self._clip_bad, self._unclipped_norm = None, None, None, None
        self._skipped, self._scale, self._finding = False, None, ""
        self._where.note("outside")

    # rows

    def _record(self, optimizer: torch.optim.Optimizer, check: Check) -> StepRecord:
        now = time.perf_counter()
        record = StepRecord(
            step=self._step,
            n_microbatches=len(self.tape.microbatches),
            loss=sum(check.losses) / len(check.losses) / (self._scale or 1.0) if check.losses else None,
            grad_norm=self._unclipped_norm,
            loss_scale=self._scale,
            lr=learning_rate(optimizer),
            skipped=self._skipped,
            step_ms=1000.0 * (now - self._step_started),
            tap_ms=1000.0 * self._tap_s,
            n_bad_grads=len(check.bad_params),
            finding=self._finding,
        )
        self._step_started, self._tap_s = now, 0.0
        return record

    def _flush(self, record: StepRecord | None) -> None:
        with self._timed():
            rows, self._rows = self._rows, []
            self._place.keep()
            self._output.write(rows, record)
            if self._output.is_broken:
                self._where.not_recording()

    def _check_leftovers(self) -> None:
        """A loss that was not finite and that no update followed: the program gave up on it, or is about to end."""
        self._parameter_check.restart()
        self._finding = self._parameter_check.read(self._check) or self._finding
        self._roots.suspend_loss_mode()
        self.tape.close_unused_loss(self.clock.microbatch, self.clock.batch)
        losses = [float(v) for m in self.tape.microbatches for v in m.values]
        check = Check(losses=losses)
        if losses and not check.loss_finite:
            self._step = self.clock.step
            rank, world_size = self._rank()
            decision = self._failures.decide(
                check, self._step, self.tape.microbatches, rank=rank, world_size=world_size, scale=None,
                clip_bad=self._clip_bad, readings=[],
            )  # fmt: skip
            self._finding = self._failures.follow(decision, None)
            self._rows += self._replay_rows.collect(self._step)
            self._rows += [scalar_reading("loss", "loss", v, self._step, i) for i, v in enumerate(losses)]
            self._flush(StepRecord(step=self._step, n_microbatches=len(losses), loss=losses[0], finding=self._finding))
        elif self._rows or self._finding:
            self._flush(None)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _scale_left_in(scaled: ScaledUpdate | None) -> float:
    return 1.0 if scaled is None or scaled.is_unscaled else scaled.state.scale or 1.0
