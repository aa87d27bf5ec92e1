"""What is imposed on a MindSpore program while it trains, at the moments at which that is safe.

When one of these cannot be done the program ends before its first update, with exit code 2 and the reason: an
experiment that is not the one that was asked for would mislead.

In PyNative every update is seen. A compiled step (TrainOneStepCell in GRAPH mode, a `jit` function that updates) is
seen from outside: rates, first weights and the last step can be imposed there, gradients cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import nn  # pyright: ignore[reportMissingImports]

from hypocenter.session.guard import StopTraining
from hypocenter.session.imposed.recorded_gradients import OPTION, RecordedGradients
from hypocenter.session.imposed.refuse import ImposeError, or_refused
from hypocenter.session.imposed.weights_from import WeightsFrom
from hypocenter.session.mindspore.imposed.gradients import GradientsFrom
from hypocenter.session.mindspore.imposed.initial_weights import InitialWeights
from hypocenter.session.mindspore.imposed.learning_rate import LearningRate
from hypocenter.session.mindspore.imposed.saved_weights import SavedWeights
from hypocenter.session.mindspore.seams import Context, Imposing
from hypocenter.tap.mindspore.reach import models_in, optimizers_in
from hypocenter.tap.mindspore.tape import GradCall, Undo


class InTraining(Imposing):
    """All of it; nothing when nothing is asked for."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rate: LearningRate | None = None
        self._gradients: GradientsFrom | None = None
        self._weights: InitialWeights | None = None
        self._saved: SavedWeights | None = None
        self._seen: set[int] = set()  # models
        self._compiled: list[Any] = []  # optimizers inside the compiled step that is under way
        self._steps_before = 0
        self._n_compiled = 0  # steps that compiled calls have taken

    def attach(self) -> Undo:
        """Read what is to be imposed."""
        config, names, told = self.context.config, self.context.names, self._tells
        with or_refused(self.context.directory):
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
                weights = WeightsFrom(
                    config.initial_weights, config.weights_map, warn=self.context.warn, told=told("initial_weights")
                )
                self._weights = InitialWeights(weights, names)
            if config.save_initial_weights:
                self._saved = SavedWeights(self.context.rank_directory, names, told("saved_weights"))
            if config.gradients_from:
                recorded = RecordedGradients(
                    config.gradients_from, config.weights_map, self.context.rank,
                    warn=self.context.warn, told=told("gradients"),
                )  # fmt: skip
                self._gradients = GradientsFrom(recorded, names)
        return lambda: None

    # models

    def before_first_forward(self, net: Any) -> None:
        """A model is about to run in training."""
        if (self._weights is None and self._saved is None) or id(net) in self._seen:
            return
        self._seen.add(id(net))
        with or_refused(self.context.directory):
            if self._weights is not None:
                self._weights.before_first_forward(net)
            if self._saved is not None:
                self._saved.before_first_forward(net)

    def begin_microbatch(self, call: GradCall) -> None:
        """In GRAPH mode cells inside are not seen: the models are those that the function mentions."""
        if not call.has_value:
            self._see_models(call.fn)

    def forward_done(self, call: GradCall) -> None:
        """A micro-batch has gone through all models that it goes through."""
        self._check_left_over()

    def _see_models(self, owner: Any) -> None:
        for model in models_in(owner) if self._weights is not None or self._saved is not None else ():
            self.context.names.add_root(model)
            self.before_first_forward(model)

    def _check_left_over(self) -> None:
        if self._weights is not None:
            with or_refused(self.context.directory):
                self._weights.nothing_is_left()

    # updates that Python sees

    def before_update(self, optimizer: Any, parameters: Sequence[Any], gradients: Sequence[Any]) -> Sequence[Any]:
        """An optimizer was called."""
        if self._saved is not None:
            self._saved.before_update()
        with or_refused(self.context.directory):
            if self._rate is not None:
                self._rate.enter(optimizer)
            if self._gradients is not None:
                return self._gradients.in_place_of(optimizer, parameters, gradients, self.context.clock.step)
        return gradients

    def after_update(self, optimizer: Any) -> None:
        """It has returned."""
        if self._rate is not None:
            self._rate.leave()

    # steps that are compiled as a whole

    def begin_call(self, cell: Any) -> None:
        """A training cell, or a compiled function that updates, is called from outside."""
        self._compiled = []
        if isinstance(cell, nn.Cell) and ms.get_context("mode") != ms.GRAPH_MODE:
            return
        self._see_models(cell)
        self._check_left_over()
        self._compiled = optimizers_in(cell)
        if self._gradients is not None and self._compiled:
            with or_refused(self.context.directory):
                raise _inside_a_graph(cell)
        self._steps_before = sum(map(steps_of, self._compiled)) if self._counts else 0
        if self._rate is not None:
            with or_refused(self.context.directory):
                for optimizer in self._compiled:
                    self._rate.enter(optimizer)

    def end_call(self, cell: Any) -> None:
        """It has returned."""
        optimizers, self._compiled = self._compiled, []
        if not optimizers:
            return
        if self._saved is not None:
            self._saved.before_update()
        if self._rate is not None:
            for _ in optimizers:
                self._rate.leave()
        if self._counts:
            self._n_compiled += (sum(map(steps_of, optimizers)) - self._steps_before) // len(optimizers)
            self.stop_if_asked(self._n_compiled - 1)

    @property
    def _counts(self) -> bool:
        return self.context.config.stop_after_step is not None

    # the last step

    def stop_if_asked(self, step: int) -> None:
        """After a step is over: end the program as one that has come to its end."""
        last = self.context.config.stop_after_step
        if last is None or step < last:
            return
        self.context.warn(f"stopped after step {last}, as asked for")
        self.context.close()
        raise StopTraining(0)

    def _tells(self, name: str) -> Callable[[str], None]:
        return lambda words: self.context.told.__setitem__(name, words)


def steps_of(optimizer: Any) -> int:
    """How many steps an optimizer has taken, by its own count."""
    for name in ("global_step", "state_step", "step_t"):
        count: Any = getattr(optimizer, name, None)
        if isinstance(count, ms.Tensor) and count.size == 1:
            return int(count.asnumpy().reshape(-1)[0])
    return 0


def _inside_a_graph(cell: Any) -> ImposeError:
    name = type(cell).__name__ if isinstance(cell, nn.Cell) else getattr(cell, "__name__", "a function")
    return ImposeError(
        f"gradients cannot be put into {name}", where=OPTION,
        why="it is compiled as a whole: its optimizer is not called from Python",
        fix="run in PyNative (mindspore.set_context(mode=mindspore.PYNATIVE_MODE)), or call the optimizer in Python",
    )  # fmt: skip
