"""Loggers in use that show finite numbers at a step that was not finite. Looked for at such steps only. For HC219."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypocenter.detect import misuse
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Observer, Update
from hypocenter.session.trainers import calling_trainer

MAX_NOTES = 8  # steps at which this is said; a run that stays NaN needs no more


class Loggers(Observer):
    """Finds the Transformers Trainer that filters its log, and `wandb.watch`, which drops non-finite values."""

    _n_notes = 0

    def at_rest(self) -> Iterable[str]:
        """What they hide is not finite."""
        return ("before_update",)

    def before_update(self, update: Update) -> None:
        """Look for loggers that hide values that are not finite, at a step that has some."""
        is_loss_bad, is_gradient_bad = not update.check.loss_finite, bool(update.check.bad_params)
        if not (is_loss_bad or is_gradient_bad) or self._n_notes >= MAX_NOTES:
            return
        self._n_notes += 1
        trainer = calling_trainer(sys._getframe(1)) if is_loss_bad else None
        if trainer is not None and getattr(trainer.args, "logging_nan_inf_filter", False):
            self._note(misuse.HIDDEN_LOSS, "Trainer", update.step)
        if is_gradient_bad and _watches_gradients():
            self._note(misuse.HIDDEN_GRADIENT, "wandb.watch", update.step)

    def _note(self, site: str, logger: str, step: int) -> None:
        row = scalar_reading(site, "optimizer", 1.0, step, self.context.clock.next_order())
        self.rows.append(replace(row, module=logger))


def _watches_gradients() -> bool:
    """Return whether wandb has hooks on gradients: its histograms leave out what is not finite."""
    run = getattr(sys.modules.get("wandb"), "run", None)
    hooks: dict[str, Any] | None = getattr(getattr(run, "_torch_history", None), "_hook_handles", None)
    return any(str(name).startswith("gradients/") for name in hooks or ())
