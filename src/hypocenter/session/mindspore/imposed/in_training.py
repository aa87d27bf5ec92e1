"""What is imposed on a MindSpore program while it trains, at the moments at which that is safe.

When one of these cannot be done the program ends before its first update, with exit code 2 and the reason: an
experiment that is not the one that was asked for would mislead.

In PyNative every update is seen. A compiled step (TrainOneStepCell in GRAPH mode, a `jit` function that updates) is
seen from outside: rates, first weights and the last step can be imposed there, gradients in training cells only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config
from hypocenter.errors import ConfigError
from hypocenter.session.events import Update
from hypocenter.session.imposed import change
from hypocenter.session.imposed.asked import changes_training
from hypocenter.session.imposed.refuse import ImposeError, or_refused, refuse_now
from hypocenter.session.mindspore.imposed import changes
from hypocenter.session.mindspore.imposed.apply import begin
from hypocenter.session.mindspore.imposed.learning_rate import LearningRate
from hypocenter.session.mindspore.seams import Context, Imposing
from hypocenter.tap.mindspore.reach import optimizers_in
from hypocenter.tap.mindspore.tape import GradCall, Undo

if TYPE_CHECKING:  # what reads checkpoints and recordings is imported only where it was asked for
    from hypocenter.session.mindspore.imposed.gradients import GradientsFrom
    from hypocenter.session.mindspore.imposed.initial_weights import InitialWeights
    from hypocenter.session.mindspore.imposed.saved_weights import SavedWeights


class InTraining(Imposing):
    """Everything that is imposed while the program trains; does nothing when nothing was asked for."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rate: LearningRate | None = None
        self._gradients: GradientsFrom | None = None
        self._weights: InitialWeights | None = None
        self._saved: SavedWeights | None = None
        self._seen: set[int] = set()  # models
        self._n_entered = 0  # optimizers of the compiled step that is under way, or is not recorded yet

    def attach(self) -> Undo:
        """Read what is to be imposed, and refuse what cannot be."""
        config, told = self.context.config, self._tells
        self.context.told.update(begin(config, self.context.warn))
        with or_refused(self.context.directory):
            self.context.told.update(_changed(config, self.context.warn))
            if config.op_bits:
                raise ImposeError(
                    "digests of operators are not taken of MindSpore programs", where="--op-bits",
                    why="they are taken from PyTorch's dispatcher", fix="leave the option out",
                )  # fmt: skip
            if config.stop_after_step is not None:
                told("stop")(f"stop after step {config.stop_after_step}")
            if config.impose_lr is not None:
                self._rate = LearningRate(config.impose_lr)
                told("learning_rate")(f"learning rate {config.impose_lr:g} at every update")
            if config.initial_weights:
                self._weights = self._initial_weights(config.initial_weights)
            if config.save_initial_weights:
                from hypocenter.session.mindspore.imposed.saved_weights import SavedWeights

                self._saved = SavedWeights(self.context.rank_directory, self.context.names, told("saved_weights"))
            if config.gradients_from:
                self._gradients = self._gradients_from(config.gradients_from)
        return lambda: None

    def _initial_weights(self, path: str) -> InitialWeights:
        from hypocenter.session.imposed.weights_from import WeightsFrom
        from hypocenter.session.mindspore.imposed.initial_weights import InitialWeights

        context = self.context
        weights = WeightsFrom(path, context.config.weights_map, warn=context.warn, told=self._tells("initial_weights"))
        return InitialWeights(weights, context.names)

    def _gradients_from(self, path: str) -> GradientsFrom:
        from hypocenter.session.imposed.recorded_gradients import RecordedGradients
        from hypocenter.session.mindspore.imposed.gradients import GradientsFrom

        context = self.context
        recorded = RecordedGradients(
            path, context.config.weights_map, context.rank, warn=context.warn, told=self._tells("gradients")
        )
        return GradientsFrom(recorded, context.names)

    # models

    def before_first_forward(self, net: Any) -> None:
        """Put initial weights in, or save them: a model is about to run in training."""
        if (self._weights is None and self._saved is None) or id(net) in self._seen:
            return
        self._seen.add(id(net))
        with or_refused(self.context.directory):
            if self._weights is not None:
                self._weights.before_first_forward(net)
            if self._saved is not None:
                self._saved.before_first_forward(net)

    def begin_microbatch(self, call: GradCall) -> None:
        """Check that no weights are left over, before a compiled function, which runs forward and backward in one."""
        if not call.has_value:
            self._check_left_over()

    def forward_done(self, call: GradCall) -> None:
        """Check that no weights are left over: a micro-batch has gone through all of its models."""
        self._check_left_over()

    def _check_left_over(self) -> None:
        if self._weights is not None:
            with or_refused(self.context.directory):
                self._weights.nothing_is_left()

    def _weights_are_in(self) -> None:
        """Refuse to update if no model was given its weights: in a compiled function nobody may have seen one."""
        if self._weights is not None and not self._seen:
            with or_refused(self.context.directory):
                raise ImposeError(
                    "there is no model to put weights into", where="--initial-weights",
                    why="the compiled function that is differentiated names none",
                    fix="call hypocenter.watch(net) in the program, or run in PyNative",
                )  # fmt: skip

    # updates that Python sees

    def before_step(self, optimizer: Any) -> None:
        """Impose the learning rate on an optimizer that was called, after a check that the weights are in."""
        self._weights_are_in()
        if self._saved is not None:
            self._saved.before_update()
        if self._rate is not None:
            with or_refused(self.context.directory):
                self._rate.enter(optimizer)

    def impose(self, optimizer: Any, parameters: Sequence[Any], gradients: Sequence[Any], step: int) -> Sequence[Any]:
        """Return the recorded gradients in place of the program's, if they were asked for; the step is recorded."""
        if self._gradients is None:
            return gradients
        with or_refused(self.context.directory):
            return self._gradients.in_place_of(optimizer, parameters, gradients, step)
        return gradients

    def after_update(self, update: Update) -> None:
        """Put the program's own learning rate back: the optimizer has returned, or was refused."""
        if self._rate is not None:
            self._rate.leave()

    # steps that are compiled as a whole

    def begin_call(self, cell: Any) -> None:
        """Impose rates and gradients on a training cell or compiled function: it is called from outside."""
        self._leave_compiled()
        if isinstance(cell, nn.Cell) and ms.get_context("mode") != ms.GRAPH_MODE:
            return
        self._check_left_over()
        self._weights_are_in()
        optimizers = optimizers_in(cell)
        if self._gradients is not None and optimizers:
            with or_refused(self.context.directory):
                self._feed(cell, self._gradients)
        if self._rate is not None:
            with or_refused(self.context.directory):
                for optimizer in optimizers:
                    self._n_entered += 1
                    self._rate.enter(optimizer)

    def _feed(self, cell: Any, gradients: GradientsFrom) -> None:
        from hypocenter.session.mindspore.imposed.fed_graphs import fed_in, put_in_front

        if not isinstance(cell, nn.Cell) or not put_in_front(cell):
            raise _inside_a_graph(cell)
        for fed in fed_in(cell):
            own = list(fed.optimizer.parameters)  # of the shapes and formats of its gradients
            used = gradients.in_place_of(fed.optimizer, own, own, self.context.clock.step)
            fed.feed(None if used is own else used)

    def end_call(self, cell: Any) -> None:
        """Save no more weights: the training cell has returned."""
        if self._saved is not None and self._n_entered:
            self._saved.before_update()

    def end_step(self, step: int) -> None:
        """Put the program's own rates back: the step is recorded."""
        self._leave_compiled()

    def _leave_compiled(self) -> None:
        while self._rate is not None and self._n_entered:
            self._n_entered -= 1
            self._rate.leave()

    def let_go(self, reason: str) -> None:
        """End the process if something was imposed: Hypocenter switches itself off and can no longer do it."""
        if changes_training(self.context.config):
            refuse_now(self.context.directory, reason)

    def _tells(self, name: str) -> Callable[[str], None]:
        return lambda words: self.context.told.__setitem__(name, words)


def _changed(config: Config, warn: Callable[[str], None]) -> dict[str, str]:
    """Make the changes that a twin makes inside of the process.

    Raises:
        ImposeError: it can be made of PyTorch only.
    """
    try:
        return change.begin(config, warn, changes)
    except ConfigError as error:
        raise ImposeError(
            f"{', '.join(config.change)} is not changed in MindSpore programs", where="--change",
            why="the change is made inside of PyTorch",
            fix="`hypocenter twin` asks MindSpore programs for nothing, threads and resume",
        ) from error  # fmt: skip


def _inside_a_graph(cell: Any) -> ImposeError:
    name = type(cell).__name__ if isinstance(cell, nn.Cell) else getattr(cell, "__name__", "a function")
    return ImposeError(
        f"gradients cannot be put into {name}", where="--gradients-from",
        why="it is compiled as a whole: its optimizer is not called from Python",
        fix="run in PyNative (mindspore.set_context(mode=mindspore.PYNATIVE_MODE)), or call the optimizer in Python",
    )  # fmt: skip
