"""The session of one process: listens to module calls, backward and updates; checks, records, replays what failed."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from hypocenter.config import Config
from hypocenter.nouns import StepRecord
from hypocenter.session.boundary import Boundary
from hypocenter.session.by_hand import UpdatesByHand
from hypocenter.session.device_errors import DeviceError
from hypocenter.session.graph_replays import GraphReplays
from hypocenter.session.guard import Listening, StopTraining, guarded
from hypocenter.session.imposed.apply import begin
from hypocenter.session.imposed.leaving import at_exit_leave_together
from hypocenter.session.in_backward import UpdatesInBackward
from hypocenter.session.inference import Inference
from hypocenter.session.learning_rate import ride_along
from hypocenter.session.parts import Parts
from hypocenter.tap.custom_functions import CustomFunctions
from hypocenter.tap.grad_scaler import found_nothing, gradients_of
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.idle import are_idle
from hypocenter.tap.leaves import TrainableLeaves
from hypocenter.tap.roots import owner_of
from hypocenter.tap.scaled import PlainUpdate, ScaledUpdate, Unscaling
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.transforms import Transforms
from hypocenter.tap.variables import variable_name
from hypocenter.tap.weakly import leave_swaps_alone

EXIT_S = 10.0  # that the end of the program may wait for a device, and never longer than ranks wait for each other


class Session(Listening):
    """One recorded process. Attach, train, close. Nothing is written before the first step is over.

    Args:
        config: frozen options.
        directory: the run directory.
        owns_run: whether run.json is ours to write (`watch`) or the launcher's (`hypocenter run`).
    """

    def __init__(self, config: Config, directory: Path, *, owns_run: bool, command: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.config, self.directory = config, directory
        self.paused = False
        self.parts = Parts(config, directory, self, owns_run=owns_run, command=command)
        self.warn, self.names, self.clock, self.tape = (
            self.parts.warn, self.parts.names, self.parts.clock, self.parts.tape,
        )  # fmt: skip
        self._boundary = Boundary(self.parts, self.close)
        self._by_hand = UpdatesByHand(self.parts, self._boundary)
        self._in_backward = UpdatesInBackward(self._boundary, may_stop=self.config.on_finding == "stop")
        self._leaves = TrainableLeaves(self.names)
        self._inference = Inference(self.names, self.clock, self.parts.failures, self.parts.rank)
        self._graphs = GraphReplays(self.parts, self._boundary)
        self._keeps_graph = False  # the backward under way
        self._looks_at_rules = self._looks_at_rule = False  # of every update, of that under way
        self._devices = set[torch.device]()  # that models lay on: at the end of a program they may be gone

    # life

    def attach(self) -> None:
        """Start listening, and impose what was asked for."""
        transforms = Transforms(self.parts.roots.user_code, self._inference.look_at_result, self.warn)
        functions = CustomFunctions(self.parts.roots.user_code, self.warn)
        leave_swaps_alone()
        self._undo = [*self.parts.attach(), transforms.attach(), functions.attach()]
        self._undo += [self.parts.optimizers.attach(self._by_hand.switch_off)]
        self._stays = [self.parts.last_words]
        self._looks_at_rules = self.parts.imposing.looks_at_rules or self.parts.levels.looks_at_rules
        self.parts.roots.on_output = self._inference.look
        self.parts.updates.before_rule, self.parts.updates.after_rule = self._before_rule, self._after_rule
        self.parts.imposed.update(begin(self.config, self.warn))

    def while_capturing(self, event: str, given: tuple[Any, ...]) -> None:
        """Only note what happens while a graph is captured: its replays will run none of this Python code."""
        self._graphs.note(event, given)

    def let_go(self, reason: str) -> None:
        """Tell other ranks to wait no longer, and end what was imposed: Hypocenter has failed."""
        self.parts.council.close()
        self.parts.imposing.let_go(reason)

    def close(self) -> None:
        """Check what no update has checked, write the rest, let go. Safe to call twice; nothing in a forked child."""
        if os.getpid() != self._pid or self._undo == []:
            return
        self.parts.where.end()
        self._graphs.stop()
        try:
            if not self.is_off and self._may_wait():
                self._look_at_the_rest()
        except Exception as error:
            self.switch_off(f"close: {type(error).__name__}: {error}", error)
        finally:
            self._detach()
            self.parts.output.close()
            self.parts.council.close()
            self.is_off = True

    def _may_wait(self) -> bool:
        """Return whether the device can be read from: the exit must not wait for a device that is stuck."""
        now = {parameter.device for _, parameter in self.names.parameters()}
        if are_idle(self._devices | now, min(EXIT_S, self.config.agree_timeout_s)):
            return True
        self.warn("the device had not done its work when the program ended: the last parameters were not looked at")
        self._boundary.flush(None)
        return False

    def _look_at_the_rest(self) -> None:
        self._graphs.at_end()
        self._by_hand.at_end()
        self._boundary.rows += self.parts.observers.at_end()
        self._boundary.at_end()
        rows, record = self._inference.at_end()
        self._boundary.rows += rows
        if self._inference.is_all and self.parts.roots.user_code.has_met_func:
            self.warn("it computes with torch.func: its results are looked at, its updates cannot be seen")
        if record is not None:
            self._boundary.flush(record)

    def broken(self, what: DeviceError) -> None:
        """Write what is known on the host: a device gives no more results. Last words are still taken."""
        self.parts.coroner.first_seen(what, self.parts.where.phase)
        self.warn(
            f"{what.title} was first seen at step {self.clock.step_now}, nothing is recorded from here on: {what.text}"
        )
        self._boundary.flush(None)

    def forked(self) -> None:
        """Listen to nothing in a forked child: a DataLoader worker trains nothing."""
        self.parts.council.forked()
        super().forked()

    @contextlib.contextmanager
    def replaying(self) -> Generator[None, None, None]:
        """Do not take anything for training in this context: a replay runs in it."""
        with self.unwatched(), self.parts.where.during("replay"):
            yield

    @contextlib.contextmanager
    def unwatched(self) -> Generator[None, None, None]:
        """Do not take anything for the program's in this context: what runs in it is ours."""
        self.paused = self.parts.roots.paused = True
        try:
            with self.parts.levels.paused():
                yield
        finally:
            self.paused = self.parts.roots.paused = False

    # module calls

    def on_root(self, module: torch.nn.Module) -> None:
        """Name a new outermost module, and attach adapters of its framework: it is about to be called."""
        self.parts.frameworks.look()
        owner = owner_of(module, sys._getframe(1))
        is_model = self.names.module_name(owner) is None and next(owner.parameters(), None) is not None
        variable = variable_name(owner, sys._getframe(1), self.names.variables()) if is_model else ""
        self.names.add_root(owner, variable=variable)
        self._devices |= {parameter.device for parameter in owner.parameters()}
        self.parts.levels.on_root(module)
        if is_model:
            self.parts.observers.tell("on_root", owner)

    def on_begin(self, training: bool) -> None:
        """Begin to listen to the call of an outermost module; `training` tells whether it may be a micro-batch."""
        if training:
            self._settle()
            self._by_hand.before_next()
        self.clock.recording = training and not self._boundary.is_updating
        self.parts.where.note("forward")
        if training:
            self.parts.imposing.before_forward(self.parts.roots.outermost)
            if self.clock.recording:
                self.parts.levels.begin_microbatch()
            self.parts.live_trace.begin_microbatch()

    # backward

    @guarded
    def before_backward(self, roots: list[torch.Tensor | GradientEdge], seeds: list[Any], retain_graph: bool) -> None:
        """Complete a micro-batch: `backward` was called."""
        self._settle(is_new=not self.parts.roots.user_code.has_met_module)  # else the model's call was new
        self.parts.imposing.before_backward()
        self.parts.roots.user_code.has_trained = True
        self._by_hand.before_next()
        self._keeps_graph = retain_graph
        with self._boundary.timed:
            self.parts.roots.suspend()
            if self.tape.leaves:
                self._leaves.look(self.tape.leaves.values(), self.clock.step, sys._getframe(1))
            microbatch = self.tape.microbatch_of(self.clock.microbatch, self.clock.batch, roots, seeds)
            self.parts.taken.consumed(microbatch)
            self._go_back(microbatch, roots)
            if not retain_graph:
                self.tape.spend(microbatch)
        if self.clock.recording:
            self.parts.levels.before_backward(seeds)
        self.parts.where.note("backward")

    def _go_back(self, microbatch: Microbatch, roots: list[torch.Tensor | GradientEdge]) -> None:
        """Count this micro-batch, as its gradients are used."""
        self.clock.recording = not self._boundary.is_updating  # recomputes inside it belong to this micro-batch
        self._boundary.begins_backward()
        self.tape.add(microbatch)
        if self.clock.recording:
            told: list[torch.Tensor] = []
            for root in roots:
                if isinstance(root, torch.Tensor):
                    told.append(root)  # noqa: PERF401 (a comprehension is a call, and this runs at each step)
            self.parts.observers.tell("before_backward", told)

    def _settle(self, *, is_last: bool = False, is_new: bool = True) -> None:
        """Count calls of `torch.autograd.grad` as micro-batches, if their results are in `.grad` now.

        Args:
            is_last: an update comes: what is not there now is not used.
            is_new: the program may have made or ended process groups since the last time.
        """
        if is_new:
            self.parts.begin_event()
        for microbatch in self.parts.taken.settle() if self.parts.taken.asked else ():
            microbatch.number, microbatch.batch = self.clock.microbatch, self.clock.batch
            microbatch.is_taken = self.parts.roots.user_code.has_trained = True
            with self._boundary.timed:
                self._go_back(microbatch, [])
                if self.clock.recording:
                    self.parts.observers.tell("after_backward")
            self.parts.levels.end_microbatch()
            self.parts.live_trace.end_microbatch()
            self.clock.end_microbatch()
            self.clock.recording = False
        if is_last:
            self.parts.taken.clear()

    @guarded
    def after_backward(self) -> None:
        """End the backward of this micro-batch: its gradients are accumulated."""
        self._end_backward(None)

    def _end_backward(self, given: list[tuple[torch.Tensor, torch.Tensor]] | None) -> None:
        with self._boundary.timed:
            if self.clock.recording:
                self.parts.observers.tell("after_backward")
            has_stepped = self._in_backward.has_stepped
            if not has_stepped and not self.parts.updates.is_in_closure and not self._by_hand.is_on:
                self._boundary.ends_backward()
            self.parts.levels.end_microbatch()
            self.parts.live_trace.end_microbatch()
            batch = self.clock.batch
            self.clock.end_microbatch()
            self.clock.recording = False
            if self._by_hand.is_on:
                self._by_hand.after_backward(keeps_graph=self._keeps_graph, given=given)
            if has_stepped:
                self._in_backward.after_backward()
        self.parts.where.note("outside")
        self.parts.roots.begin_step()
        if self.config.stop_after_batch is not None and batch >= self.config.stop_after_batch:
            self._boundary.flush(StepRecord(step=self.clock.step, n_microbatches=self.clock.microbatch))
            self.warn(f"stopped after batch {batch}, as asked for")
            self.close()
            raise StopTraining(0)

    @guarded
    def before_gradients(
        self, roots: list[torch.Tensor | GradientEdge], inputs: list[Any], seeds: list[Any], retain_graph: bool
    ) -> bool:
        """Take a call of `torch.autograd.grad` for a micro-batch, if the program updates its parameters itself.

        Where there is an optimizer, what the program does with the gradients tells whether it is one.

        Returns:
            Whether it is one: it asks for gradients of parameters, and there is no optimizer.
        """
        leaves = {} if self.parts.roots.user_code.has_met_module else self.tape.leaves
        is_of_parameters = any(isinstance(i, torch.nn.Parameter) or id(i) in leaves for i in inputs)
        if is_of_parameters and self._by_hand.is_on:
            self.before_backward(roots, seeds, retain_graph)
            return True
        if self.parts.optimizers.all() and not self._boundary.is_updating:
            with self._boundary.timed:
                if all(isinstance(root, torch.Tensor) for root in roots):
                    self.parts.taken.note(self.tape.microbatch_of(0, 0, roots, seeds))
                self.parts.taken.ask(inputs)
        return False

    @guarded
    def after_gradients(self, gradients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """End the backward of `torch.autograd.grad`, which has returned these (parameter, gradient)."""
        self._end_backward(gradients)

    @guarded
    def before_clip(self, parameters: list[torch.Tensor], max_norm: float) -> None:
        """Note which gradients are not finite before they are clipped, as clipping spreads one NaN to all of them."""
        self._settle()
        self.parts.roots.suspend_between()
        with self._boundary.timed:
            self._boundary.clips(parameters, max_norm)

    # updates

    @guarded
    def before_unscale(self, unscaling: Unscaling) -> None:
        """Tell observers that the user is about to take the loss scale out of the gradients."""
        self._settle()
        self.parts.roots.suspend_between()
        with self._boundary.timed:
            self.parts.observers.tell("before_unscale", unscaling)

    @guarded
    def after_unscale(self, unscaling: Unscaling) -> None:
        """Tell observers that the loss scale is out of the gradients."""
        with self._boundary.timed:
            self.parts.observers.tell("after_unscale", unscaling)

    @guarded
    def before_scaled_step(self, update: ScaledUpdate) -> None:
        """Check the gradients before the step of a loss scaler: they are scaled unless the user has unscaled them."""
        self._settle(is_last=True)
        self.parts.imposing.before_step(update.optimizer)
        self.parts.roots.suspend_between()
        with self._boundary.timed:
            ride_along(update.optimizer, self.parts.sentinel.ride)
            for numbers, arrive in update.on_device:
                self.parts.sentinel.ride(numbers, arrive)
            self.parts.observers.tell("before_check", update)
            self._boundary.before(update.optimizer, update)
        self._boundary.act(update.optimizer)
        self._boundary.is_skipped = self._boundary.is_bad
        if not self._boundary.is_bad:
            update.found_inf.update(update.found_inf or found_nothing(update))

    @guarded
    def after_scaled_step(self, update: ScaledUpdate) -> None:
        """Complete the step: the scaler has updated, or skipped the update."""
        if update.found_inf:  # else: what our own check saw
            self._boundary.is_skipped = any(update.found_inf.values())
        self._boundary.after(update.optimizer)
        self.parts.imposing.after_step()
        self._stop_if_asked()

    @guarded
    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the gradients before the optimizer uses them; the parameters are still those the step began with."""
        self._settle(is_last=True)
        if self._only_makes_state(optimizer):
            return
        self._boundary.scale = None
        with self._boundary.timed:
            ride_along(optimizer, self.parts.sentinel.ride)
            self._boundary.before(optimizer, None)
        self._boundary.act(optimizer)

    @guarded
    def in_backward(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that an optimizer is about to step inside a backward."""
        self._in_backward.note(optimizer)

    @guarded
    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Complete the step: the optimizer has updated."""
        self._boundary.after(optimizer)
        if self.config.stop_after_step is not None:
            self._stop_if_asked()

    @guarded
    def before_evaluation(self) -> None:
        """Begin one more evaluation: the optimizer has moved the parameters and calls its closure again."""
        self.tape.clear()
        self.clock.begin_evaluation()

    @guarded
    def after_evaluation(self, optimizer: torch.optim.Optimizer) -> None:
        """Check the loss and gradients of a closure, while the parameters are still those that it used."""
        self.parts.roots.reset()
        with self._boundary.timed:
            self._boundary.evaluated(gradients_of(optimizer))

    def _before_rule(self, optimizer: torch.optim.Optimizer) -> None:
        self._looks_at_rule = self._looks_at_rules or self.parts.audits.is_due(self._boundary.step)
        if self._looks_at_rule:
            self.before_rule(optimizer)

    def _after_rule(self, optimizer: torch.optim.Optimizer) -> None:
        if self._looks_at_rule:
            self.after_rule(optimizer)

    @guarded
    def before_rule(self, optimizer: torch.optim.Optimizer) -> None:
        """Look before an optimizer's own rule is applied, also inside a scaler's or framework's step."""
        step, is_audited = self._boundary.step, self.parts.audits.is_due(self._boundary.step)
        if not self._only_makes_state(optimizer):
            self.parts.imposing.before_rule(optimizer, step)
            self.parts.levels.before_rule(optimizer, step)
            if is_audited:
                with self._boundary.timed:
                    self.parts.observers.tell("before_rule", optimizer, step)

    @guarded
    def after_rule(self, optimizer: torch.optim.Optimizer) -> None:
        """Look after an optimizer's own rule was applied."""
        if self.parts.audits.is_due(self._boundary.step):
            with self._boundary.timed:
                self.parts.observers.tell("after_rule", optimizer)
        self.parts.levels.after_rule(optimizer)

    def _stop_if_asked(self) -> None:
        """Stop training after the step that `stop_after_step` names, once every known optimizer has taken it."""
        last = self.config.stop_after_step
        if last is None or self.clock.step <= last:
            return
        self.warn(f"stopped after step {last}, as asked for")
        self.close()
        at_exit_leave_together(self.config.agree_timeout_s)
        raise StopTraining(0)

    @guarded
    def before_plain_step(self, update: PlainUpdate) -> None:
        """Check the gradients before a framework's own optimizer steps; there is no loss scale."""
        self._settle(is_last=True)
        self.parts.imposing.before_step(update.optimizer)
        self._boundary.scale = None
        with self._boundary.timed:
            ride_along(update.optimizer, self.parts.sentinel.ride)
            self._boundary.before(update.optimizer, None, update.gradients)
        self._boundary.act(update.optimizer, update)

    @guarded
    def after_plain_step(self, update: PlainUpdate) -> None:
        """Complete the step: a framework's own optimizer has updated, or found that it must not."""
        self._boundary.is_skipped = self._boundary.is_skipped or update.was_skipped
        self._boundary.after(update.optimizer)
        self.parts.imposing.after_step()
        self._stop_if_asked()

    def watch_scaler(self, scaler: Any) -> None:
        """Watch a loss scaler of the user's, of whatever class."""
        self.parts.scalers.watch(scaler)

    def _only_makes_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether this step, on zero gradients, only makes the optimizer's state: DeepSpeed does so."""
        if self.tape.microbatches or self.clock.microbatch or optimizer.state:
            return False
        held = [g for _, grad in gradients_of(optimizer) if (g := local(grad)) is not None]
        return bool(held) and not any(to_host(norms(held)))
