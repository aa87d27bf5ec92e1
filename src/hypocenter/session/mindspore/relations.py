"""What must not matter to a MindSpore program is changed in replays of a healthy step. For HC241, 242, 251 to 253."""

from __future__ import annotations

import math
from dataclasses import replace

from hypocenter import own_time
from hypocenter.config import Config
from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import Reading
from hypocenter.relations.mindspore import Misused, Shown, look
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers.optimizer_rows import count_row, number_row

TRIES = 3  # updates at which it is tried, where the batch did not suit
LONGEST_S = 1.0  # a step by default: four replays and more are made of one
REPLAYS, SHARE = 5, 0.15  # so many are made; a longer step by default only once they are no more than that of the run


class Relations(Part):
    """Looks at the second update or, where steps are long, later; not in jobs of several ranks."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether relations are to be looked at, as for torch."""
        return config.looks_at_relations

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._n_left = TRIES
        self._is_auto = context.config.relations == "auto"
        self._first_s: float | None = None  # when the first update came
        self._last_s = 0.0  # and the one before this one
        self._step_s = math.inf  # the shortest step: others hold an audit, or are compiled

    def before_update(self, update: Update) -> None:
        """Replay a micro-batch with what must not matter changed; parameters are those that the step began with."""
        now, before = own_time.now(), self._last_s
        self._last_s = now
        self._first_s = now if self._first_s is None else self._first_s
        self._step_s = min(self._step_s, now - before) if before else math.inf
        if not self._n_left or not self.context.audits.is_due(update.step) or update.step == 0:
            return
        step_s = self._step_s
        if self._is_auto and step_s > LONGEST_S and REPLAYS * step_s > SHARE * (now - self._first_s):
            return
        if not update.microbatches or update.skipped or not update.check.is_finite or self.context.rank()[1] > 1:
            return
        self._n_left -= 1
        try:
            with self.context.audits.spending():
                looked = look(self._replayer, update.microbatches[-1], self.context.names.cells())
        except ReplayImpossible as why:
            self._give_up(str(why))
            return
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._give_up(f"the model raised {type(error).__name__}: {str(error)[:200]}")
            return
        if looked.held or looked.broken or looked.losses:
            self._n_left = 0
        order, step = self.context.clock.next_order, update.step
        self.rows += [_row(each, step, order()) for each in looked.broken]
        self.rows += [_row_of_loss(each, step, order()) for each in looked.losses]
        counts = len(looked.held) + len(looked.broken), len(looked.held)
        words = (*(f"{name}{rows.HOLDS}" for name in looked.held),
                 *(f"{name}{rows.NOT_ASKED}{why}" for name, why in looked.not_asked.items()))  # fmt: skip
        self.rows.append(replace(count_row(rows.SITE, rows.LOOKED, step, order(), counts), names=words))

    def _give_up(self, why: str) -> None:
        self._n_left = 0
        if not self._is_auto:
            self.context.warn(f"relations were not looked at: {why}")


def _row(shown: Shown, step: int, order: int) -> Reading:
    trial = shown.trial
    row = number_row(shown.module, rows.RELATION, step, order, shown.size, module=shown.kind)
    return replace(row, op=trial.code, names=(trial.what, trial.whom, "", trial.relation), dtype=f"{shown.limit:.3g}")


def _row_of_loss(found: Misused, step: int, order: int) -> Reading:
    wrong = found.wrong
    row = number_row("", rows.LOSS, step, order, found.size)
    return replace(row, op=found.code, source=found.source, names=(wrong.title, wrong.why, wrong.remedy))
