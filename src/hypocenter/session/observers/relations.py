"""`run --relations`: what must not matter is changed in replays of a healthy micro-batch, and looked at."""

from __future__ import annotations

from dataclasses import replace

import torch

from hypocenter import schedule
from hypocenter.config import Config
from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import Reading
from hypocenter.relations.check import Broken, Looked, look
from hypocenter.relations.subject import Subject
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.tap.tape import Microbatch


class Relations(Observer):
    """Writes a row for each relation that does not hold, once for each module."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """They were asked for."""
        return config.relations != "never"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse(context.config.relations)
        self._known: set[tuple[str, str]] = set()

    def before_update(self, update: Update) -> None:
        """The step is complete, and the parameters are still those that it started from."""
        if not self._is_due(update.step) or not update.microbatches or update.skipped or not update.check.is_finite:
            return
        try:
            if self.context.replayer.needs_all():
                raise ReplayImpossible("the model computes on all ranks together")
            self._note(look(self._subject(update.microbatches[-1])), update)
        except (ReplayImpossible, torch.OutOfMemoryError) as why:
            self.context.warn(f"relations were not looked at in step {update.step}: {why}")

    def _subject(self, microbatch: Microbatch) -> Subject:
        context = self.context
        subject = Subject(context.replayer, microbatch, context.names.module_name)
        for given in subject.of_model:
            loaded = context.loaded(context.tape.originals(given.tensor))
            if loaded is not None and loaded.indices:
                subject.n_rows = len(loaded.indices)
        return subject

    def _note(self, looked: Looked, update: Update) -> None:
        order, step = self.context.clock.next_order, update.step
        for each in looked.broken:
            if (each.relation, each.module) not in self._known:
                self._known.add((each.relation, each.module))
                self.rows.append(_row(each, step, order()))
        n_asked = len(looked.held) + len(looked.broken)
        row = count_row(rows.SITE, rows.LOOKED, step, order(), (n_asked, len(looked.held)))
        words = [f"{name}: not asked: {why}" for name, why in looked.not_asked.items()] + looked.notes
        self.rows.append(replace(row, names=tuple(words)))


def _row(broken: Broken, step: int, order: int) -> Reading:
    row = number_row(broken.module, rows.RELATION, step, order, broken.size, module=broken.kind)
    names = (broken.what, broken.whom, broken.exception)
    return replace(row, op=broken.code, source=broken.source, names=names, dtype=f"{broken.limit:.3g}")
