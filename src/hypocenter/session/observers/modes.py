"""In which mode, training or evaluation, the modules run that an update is made of. For HC237."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import IN_EVALUATION, RETURNED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row

USUAL = 8  # updates in a row in the mode of training, before the first one in the other
LASTS = 4  # updates in a row in that
KEPT = 1024  # modules
MODULES = 16  # called from outside in one micro-batch: a program that calls more is not followed


@dataclass(slots=True)
class _Mode:
    """Of one module that the program calls."""

    n_training: int = 0  # updates in a row
    n_other: int = 0  # after them


class Modes(Observer):
    """Writes a row when a module that was trained in the mode of training goes on to be trained in the other."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._modes: defaultdict[int, _Mode] = defaultdict(_Mode)  # by id of the module

    def before_update(self, update: Update) -> None:
        """Which modules made the loss that was gone back from last?"""
        if not update.microbatches:
            return
        events = [e for _, e in self.context.tape.slice(update.microbatches[-1]) if e.training is not None]
        if len(self._modes) > KEPT:  # modules that are made anew in every step
            self._modes.clear()
        for event in events[:MODULES]:
            module: Any = event.function
            mode = self._modes[id(module)]
            if event.training:
                mode.n_training, mode.n_other = mode.n_training + 1 if not mode.n_other else 1, 0
                continue
            mode.n_other += 1
            is_new = mode.n_training == 0
            if mode.n_other == LASTS and (is_new or mode.n_training >= USUAL) and (n := n_modal(module)):
                order, name = self.context.clock.next_order(), self.context.names.module_name(module) or ""
                row = number_row(
                    name, IN_EVALUATION, update.step, order, LASTS, module="" if is_new else RETURNED, call=n
                )
                self.rows.append(row)


def n_modal(module: Any) -> int:
    """How many modules in it do something else in training: their code asks for it, and they are not set to zero."""
    return sum(
        "training" in getattr(getattr(type(each).forward, "__code__", None), "co_names", ())
        and getattr(each, "p", 1.0) != 0.0
        for each in module.modules()
    )
