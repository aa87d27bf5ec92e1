"""The session of one process that trains with MindSpore: listens to its taps, checks, records, tells its parts.

Who is told of what and when is written in hypocenter.session.events.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config
from hypocenter.record.layout import rank_directory
from hypocenter.session.guard import Listening, StopTraining, guarded
from hypocenter.session.mindspore.assembly import assemble
from hypocenter.session.mindspore.boundary import Boundary, outcome
from hypocenter.session.mindspore.framework import MindSporeFramework
from hypocenter.session.mindspore.rank import rank_and_world_size
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.output import Output
from hypocenter.session.place_keeper import PlaceKeeper
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore import reach
from hypocenter.tap.mindspore.calls import CallTap, models_in, optimizer_in
from hypocenter.tap.mindspore.clipping import ClipTap
from hypocenter.tap.mindspore.gradients import Norms
from hypocenter.tap.mindspore.grads import GradTap
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.owners import all_optimizers
from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.scalers import ScalerTap, of_sens
from hypocenter.tap.mindspore.tape import GradCall, Scale, Tape
from hypocenter.tap.mindspore.updates import UpdateTap
from hypocenter.tap.scaled import Unscaling


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
        self._is_closed = False
        self.names, self.clock, self.tape = NameMap(), Clock(), Tape(config.keep_mb << 20)
        self.patches = Patches()
        self.grads = GradTap(self, self.warn)
        self.calls = CallTap(self, self.grads)
        self.updates = UpdateTap(self)
        self.scalers = ScalerTap(self)
        self.clipping = ClipTap(self)
        place = PlaceKeeper(directory, "mindspore", rank_and_world_size, self.warn, device)
        self.context = Context(
            config=config,
            label=self.names.label,
            framework=MindSporeFramework(self.patches),
            directory=directory,
            names=self.names,
            names_of=self.names.param_names,
            clock=self.clock,
            tape=self.tape,
            patches=self.patches,
            warn=self.warn,
            rank=rank_and_world_size,
            rank_directory=lambda: rank_directory(directory, rank_and_world_size()[0]),
            place=place.current,
            after_calls=self.calls.after_calls,
            optimizers=self._optimizers,
            paused=self.paused,
            close=self.close,
        )
        self.seams = assemble(self.context)
        output = Output(
            config, directory, rank_and_world_size, self.warn, owns_run=owns_run, command=command,
            versions=versions(), imposed=self.context.told,
        )  # fmt: skip
        self._output = output
        self.boundary = Boundary(self.context, self.seams, output, place, self.close)
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost cells
        self._is_updated = False  # an optimizer was called since the training cell under way began

    # life

    def attach(self) -> None:
        """Start to listen to training."""
        self._undo.append(self.patches.attach())
        # first: what reads a model's call must run inside of what names the model
        self._undo += self.seams.attach()
        for tap in (self.grads, self.calls, self.updates, self.scalers, self.clipping):
            tap.attach(self.patches)

    def _optimizers(self) -> list[Any]:
        found = (self.context.framework.optimizer(each) for each in all_optimizers())
        return [each for each in found if each is not None]

    def let_go(self, reason: str) -> None:
        """End what was imposed: Hypocenter has failed."""
        self.seams.imposing.let_go(reason)

    def close(self) -> None:
        """Check what no update has checked, write the rest, let go. Safe to call twice; nothing in a forked child."""
        if os.getpid() != self._pid or self._is_closed:
            return
        self._is_closed = True
        try:
            self._at_end()
        finally:
            self._detach()
            self._output.close()
            self.is_off = True

    @guarded
    def _at_end(self) -> None:
        self.boundary.at_end()

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Do not take anything for training in this context: a replay runs in it."""
        taps = (self.grads, self.calls, self.updates, self.scalers, self.clipping)
        was, recording = [tap.paused for tap in taps], self.clock.recording
        for tap in taps:
            tap.paused = True
        self.clock.recording = False
        try:
            with self.seams.levels.paused(), self.seams.graphs.paused():
                yield
        finally:
            self.clock.recording = recording
            for tap, before in zip(taps, was, strict=True):
                tap.paused = before

    # calls

    @guarded
    def on_root(self, cell: Any) -> None:
        """Name a model when a differentiated function calls it from outside of any other cell for the first time."""
        if cell in self._called:
            return
        with self.boundary.timed:
            self._called.add(cell)
            self.names.add_root(cell)
            for root in self.names.roots():  # `watch` may have named it already
                self.seams.see_root(root)

    @guarded
    def begin_call(self, cell: Any) -> None:
        """Begin to listen to the call of a training cell, or of a compiled step."""
        self._is_updated = False
        for model in models_in(cell) or self._mentioned(cell):
            self.on_root(model)
        self.clock.recording = True
        self.seams.tell("begin_call", cell)
        if not isinstance(cell, nn.Cell) or ms.get_context("mode") == ms.GRAPH_MODE:
            self.boundary.before_compiled(optimizer_in(cell))

    @guarded
    def end_call(self, cell: Any, outputs: Any, failed: bool) -> None:
        """End the call of a training cell; a step that ran compiled, or was skipped, is written now."""
        self.seams.tell("end_call", cell)
        self.clock.recording = False
        if failed:
            return
        result = outcome(cell, outputs)
        if self.tape.microbatches and not self._is_updated:
            if result.skipped or self._is_skip():
                self.boundary.skipped(optimizer_in(cell))
        elif not self._is_updated and not self.tape.microbatches:
            self._say_compiled()
            self.boundary.compiled(result, optimizer_in(cell))
        self._stop_if_asked()

    def _mentioned(self, thing: Any) -> list[Any]:
        """Return the models of a compiled function, in which calls are not seen; else those that are known."""
        return reach.models_in(thing) or self.names.roots()

    def _say_compiled(self) -> None:
        if not self.seams.graphs.is_dumping:
            self.warn(
                "steps run as compiled graphs: of each, the loss that comes out and the learning rate are recorded"
            )

    # micro-batches

    @guarded
    def begin_microbatch(self, call: GradCall) -> None:
        """Begin a micro-batch: a differentiated function is about to run forward."""
        with self.boundary.timed:
            if len(self.tape.microbatches) >= self.boundary.n_usual and not self.calls.is_training and self._is_skip():
                self.boundary.skipped()
                self._stop_if_asked()
            call.number, call.batch = self.clock.microbatch, self.clock.batch
            self.tape.add(call)
            for model in models_in(call.fn) if call.has_value else self._mentioned(call.fn):
                self.on_root(model)
            self.clock.recording = True
            if call.has_sens and (call.args or "sens" in call.kwargs):
                sens = call.kwargs["sens"] if "sens" in call.kwargs else call.args[-1]
                scale = of_sens(sens, self.calls.training_cell)
                if scale is not None:
                    self.on_scale(scale)
        self.seams.tell("begin_microbatch", call)

    @guarded
    def forward_done(self, call: GradCall) -> None:
        """Tell observers that the forward of this micro-batch has run."""
        self.seams.tell("forward_done", call)

    @guarded
    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None:
        """Complete a micro-batch: its backward has run."""
        if not call.weights:
            self.tape.drop(call)  # gradients of inputs alone: no training
        with self.boundary.timed:
            call.norms = Norms(gradients)
        self.seams.tell("end_microbatch", call, gradients)
        if call.weights:
            self.clock.end_microbatch()
        self.clock.recording = self.calls.is_training
        last = self.config.stop_after_batch
        if last is not None and call.weights and call.batch >= last:
            self.boundary.cut_off()
            self._stop(f"batch {last}")

    def _is_skip(self) -> bool:
        """Return whether gradients that no optimizer was given are not finite: then nobody will use them."""
        check = self.boundary.sentinel.of_microbatches(self.tape.microbatches)
        return bool(check.bad_params)

    # loss scaling and clipping

    @guarded
    def on_scale(self, scale: Scale) -> None:
        """Note the loss scale: a scaler multiplies the loss by it, or backward starts from it."""
        if self.grads.current is not None:
            self.grads.current.scale = scale
            self.boundary.scale.note(scale)

    @guarded
    def on_unscale(self, scale: Scale) -> None:
        """Note that a scaler takes the loss scale out of gradients."""
        self.seams.tell("before_unscale", Unscaling(scaler=scale.scaler, optimizer=None, gradients=()))
        self.boundary.scale.unscaled(scale)

    @guarded
    def on_adjust(self, scaler: Any, finite: bool) -> None:
        """Write a skipped step when a scaler was told that the gradients were not finite."""
        if not finite and self.tape.microbatches:
            self.boundary.skipped()
            self._stop_if_asked()

    @guarded
    def before_clip(self, gradients: Sequence[Any]) -> None:
        """Note the norm of gradients that are about to be clipped."""
        with self.boundary.timed:
            self.boundary.clips(gradients)

    # updates

    def before_update(self, optimizer: Any, gradients: Sequence[Any]) -> Sequence[Any] | None:
        """Check the gradients of an optimizer's call. Returns those that it is to use; None: it must not update."""
        self._is_updated = True
        answer = self._before_update(optimizer, gradients)
        return gradients if answer is None else answer.gradients

    @guarded
    def _before_update(self, optimizer: Any, gradients: Sequence[Any]) -> _Answer | None:
        with self.boundary.timed:
            used = self.boundary.before(optimizer, gradients)
        if used is None:
            self.boundary.refused()
        return _Answer(used)

    @guarded
    def after_update(self, optimizer: Any) -> None:
        """Complete the step: the optimizer has returned."""
        self.boundary.after(optimizer)
        self._stop_if_asked()

    # the end that was asked for

    def _stop_if_asked(self) -> None:
        """Stop training after the step that `stop_after_step` names, once every known optimizer has taken it."""
        last = self.config.stop_after_step
        if last is not None and self.clock.step > last:
            self._stop(f"step {last}")

    def _stop(self, what: str) -> NoReturn:
        self.warn(f"stopped after {what}, as asked for")
        self.close()
        raise StopTraining(0)


class _Answer:
    """What an optimizer is to use. It differs from None, which a guarded method that failed returns."""

    def __init__(self, gradients: Sequence[Any] | None) -> None:
        self.gradients = gradients


def device() -> tuple[str, str]:
    """Return the device and its name: ("cpu", ""), ("npu:3", "Ascend910B")."""
    target = str(ms.get_context("device_target"))
    if target == "CPU":
        return "cpu", ""
    number = int(ms.get_context("device_id"))
    try:
        name = str(ms.hal.get_device_name(number))
    except Exception:  # another version of MindSpore
        name = target
    return ("npu" if target == "Ascend" else "cuda") + f":{number}", name


def versions() -> dict[str, str]:
    """Return versions of packages, MindSpore's first: it is the framework's name."""
    return {"mindspore": str(ms.__version__), "numpy": str(np.__version__)}
