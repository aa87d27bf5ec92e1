"""In which mode, training or evaluation, the modules run that an update is made of. For HC237."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import IN_EVALUATION, RETURNED
from hypocenter.session.events import ContextT, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row

USUAL = 8  # updates in a row in the mode of training, before the first one in the other
LASTS = 4  # updates in a row in that
KEPT = 1024  # modules


@dataclass(slots=True)
class _Mode:
    """The updates of one module that the program calls, counted by mode."""

    n_training: int = 0  # updates in a row
    n_other: int = 0  # after them


class Modes(Observer[ContextT]):
    """Writes a row when a module that was trained in the mode of training goes on to be trained in the other."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._modes: defaultdict[int, _Mode] = defaultdict(_Mode)  # by id of the module

    def called(self, update: Update) -> Sequence[tuple[Any, bool]]:
        """Return the modules that made the loss of the last backward, and whether each was in training mode then."""
        raise NotImplementedError

    def n_modal(self, module: Any) -> int:
        """Count its modules that act otherwise in training: their code asks for the mode, and they are not set to 0."""
        raise NotImplementedError

    def name_of(self, module: Any) -> str:
        """Return the user's name of a module."""
        raise NotImplementedError

    def before_update(self, update: Update) -> None:
        """Count each module's updates in each mode; write a row for one that goes on in evaluation mode."""
        if len(self._modes) > KEPT:  # modules that are made anew in every step
            self._modes.clear()
        for module, is_training in self.called(update):
            mode = self._modes[id(module)]
            if is_training:
                mode.n_training, mode.n_other = mode.n_training + 1 if not mode.n_other else 1, 0
                continue
            mode.n_other += 1
            is_new = mode.n_training == 0
            if mode.n_other == LASTS and (is_new or mode.n_training >= USUAL) and (n := self.n_modal(module)):
                order, how = self.context.clock.next_order(), "" if is_new else RETURNED
                row = number_row(self.name_of(module), IN_EVALUATION, update.step, order, LASTS, module=how, call=n)
                self.rows.append(row)
