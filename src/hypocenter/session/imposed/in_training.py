"""What is imposed while the program trains, at the moments at which that is safe.

When one of these cannot be done the program ends before its first update, with exit code 2 and the reason: an
experiment that is not the one that was asked for would mislead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from hypocenter.config import Config
from hypocenter.errors import HypocenterError
from hypocenter.nouns import Place
from hypocenter.record.layout import rank_directory
from hypocenter.session.imposed.asked import changes_training
from hypocenter.session.imposed.learning_rate import LearningRate
from hypocenter.session.imposed.refuse import or_refused, refuse, refuse_now
from hypocenter.tap.names import NameMap

if TYPE_CHECKING:  # what reads checkpoints and recordings is imported only where it was asked for
    from hypocenter.session.imposed.gradients import GradientsFrom
    from hypocenter.session.imposed.initial_weights import InitialWeights
    from hypocenter.session.imposed.saved_weights import SavedWeights


class InTraining:
    """Everything that is imposed while the program trains; does nothing when nothing was asked for.

    Args:
        rank: this rank, and how many there are.
        told: name -> what was imposed, in words: filled here, kept in run.json.
    """

    def __init__(
        self,
        config: Config,
        directory: Path,
        names: NameMap,
        *,
        rank: Callable[[], tuple[int, int]],
        place: Callable[[], Place],
        warn: Callable[[str], None],
        told: dict[str, str],
    ) -> None:
        self._config, self._directory, self._told = config, directory, told
        self._folder = lambda: rank_directory(directory, rank()[0])
        self._names, self._rank, self._place, self._warn = names, rank, place, warn
        self._called: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._rate: LearningRate | None = None
        self._gradients: GradientsFrom | None = None
        self._weights: InitialWeights | None = None
        self._saved: SavedWeights | None = None

    @property
    def is_asked(self) -> bool:
        """Whether training is to be other than the program's own."""
        return changes_training(self._config)

    @property
    def looks_at_rules(self) -> bool:
        """Whether `before_rule` does anything."""
        return self._saved is not None or self._gradients is not None

    def attach_first(self) -> Callable[[], None]:
        """Attach what has to come before everything else that looks at optimizers; returns the undo."""
        config, undo = self._config, contextlib.ExitStack()
        with self._or_refused():
            if config.stop_after_step is not None:
                self._told["stop"] = f"stop after step {config.stop_after_step}"
            if config.impose_lr is not None:
                self._rate = LearningRate(config.impose_lr, self._refused)
                undo.callback(self._rate.attach_first())
                self._told["learning_rate"] = f"learning rate {config.impose_lr:g} at every update"
            if config.initial_weights or config.save_initial_weights:
                undo.callback(self._attach_weights())
            if config.gradients_from:
                from hypocenter.session.imposed.gradients import GradientsFrom
                from hypocenter.session.imposed.recorded_gradients import RecordedGradients

                recorded = RecordedGradients(
                    config.gradients_from, config.weights_map, self._rank,
                    warn=self._warn, told=self._tells("gradients"),
                )  # fmt: skip
                self._gradients = GradientsFrom(recorded, self._names)
        return undo.close

    def _attach_weights(self) -> Callable[[], None]:
        from hypocenter.session.imposed.initial_weights import InitialWeights
        from hypocenter.session.imposed.laid_out import LaidOut
        from hypocenter.session.imposed.saved_weights import SavedWeights

        config, laid_out = self._config, LaidOut(self._names, self._place)
        if config.initial_weights:
            self._weights = InitialWeights(
                config.initial_weights, config.weights_map, self._names, laid_out,
                warn=self._warn, told=self._tells("initial_weights"),
            )  # fmt: skip
        if config.save_initial_weights:
            self._saved = SavedWeights(self._folder, self._names, laid_out, self._tells("saved_weights"))
        return laid_out.attach()

    def attach_last(self) -> Callable[[], None]:
        """Attach what has to come after everything else that looks at optimizers; returns the undo."""
        return self._rate.attach_last() if self._rate is not None else lambda: None

    def before_forward(self, module: nn.Module | None) -> None:
        """Put initial weights in, or save them: an outermost module is about to be called in training."""
        if module is None or (self._weights is None and self._saved is None) or module in self._called:
            return
        self._called.add(module)
        with self._or_refused():
            if self._weights is not None:
                self._weights.before_forward(module)
            if self._saved is not None:
                self._saved.before_forward(module)

    def before_backward(self) -> None:
        """Check that no weights are left over: a micro-batch has gone through all of its models."""
        if self._weights is not None:
            with self._or_refused():
                self._weights.before_backward()

    def before_step(self, optimizer: Any) -> None:
        """Impose the learning rate before a scaler or framework steps, so that the imposed one is recorded."""
        if self._saved is not None:
            self._saved.before_update()
        if self._rate is not None:
            self._rate.enter(optimizer)

    def after_step(self) -> None:
        """Put the program's own learning rate back: the scaler or framework has stepped."""
        if self._rate is not None:
            self._rate.leave()

    def before_rule(self, optimizer: Optimizer, step: int) -> None:
        """Put recorded gradients in: gradients are final, and the optimizer's own rule comes next."""
        if self._saved is not None:
            self._saved.before_update()
        if self._gradients is not None:
            with self._or_refused():
                self._gradients.before_rule(optimizer, step)

    def let_go(self, reason: str) -> None:
        """End the process if something was imposed: Hypocenter switches itself off and can no longer do it."""
        if self.is_asked:
            refuse_now(self._directory, reason)

    def _tells(self, name: str) -> Callable[[str], None]:
        return lambda words: self._told.__setitem__(name, words)

    def _refused(self, error: HypocenterError) -> None:
        refuse(error, self._directory)

    def _or_refused(self) -> contextlib.AbstractContextManager[None]:
        return or_refused(self._directory)
