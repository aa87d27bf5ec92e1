"""What must not matter to a MindSpore program is changed in replays of a healthy step. For HC241, 242, 251 to 253."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from hypocenter import own_time, schedule
from hypocenter.config import Config
from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import Reading
from hypocenter.relations.mindspore import Looked, Misused, Shown, given_to, look
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers import relations_due
from hypocenter.session.observers.optimizer_rows import count_row, number_row

TRIES = 3  # updates at which it is tried, where the batch did not suit
LONGEST_S = 2.0  # a step by default: four replays and more are made of one
REPLAYS, SHARE_OF_FIRST = 5, 0.15  # so many are made; a longer step by default only once they are no more than that


class Relations(Part):
    """Looks at the second update or, where steps are long, later, and then as in torch; not in jobs of several ranks.

    Also where arguments are longer than at any look before: a mask may have been made for the shorter ones.
    """

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether relations are to be looked at, as for torch."""
        return config.looks_at_relations

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._n_left = TRIES
        self._is_auto = context.config.relations == "auto"
        self._is_due = relations_due.is_due if self._is_auto else schedule.parse(context.config.relations)
        self._first_s: float | None = None  # when the first update came
        self._last_s = 0.0  # and the one before this one
        self._step_s = math.inf  # the shortest step: others hold an audit, or are compiled
        self._longest: list[tuple[int, ...]] = []  # shapes of arguments that were looked at
        self._n_looked = self._n_grown = 0
        self._spent_s = 0.0  # by looks that are no first ones
        self._held: dict[str, int] = {}  # the last step at which a relation held
        self._known: set[str] = set()  # relations that do not hold
        self._told: set[str] = set()  # of losses, by title
        self._said: tuple[str, ...] = ()
        self._is_off = self._is_too_long = False

    def before_update(self, update: Update) -> None:
        """Replay a micro-batch with what must not matter changed; parameters are those that the step began with."""
        now, before = own_time.now(), self._last_s
        self._last_s = now
        self._first_s = now if self._first_s is None else self._first_s
        self._step_s = min(self._step_s, now - before) if before else math.inf
        if self._is_off or update.step == 0 or not update.microbatches or self.context.rank()[1] > 1:
            return
        shapes = [tuple(t.shape) for t in given_to(update.microbatches[-1])]
        is_first = self._n_left > 0 and self.context.audits.is_due(update.step)
        if not (is_first or self._is_again(update.step, shapes, now)) or update.skipped or not update.check.is_finite:
            return
        step_s = self._step_s
        if self._is_auto and step_s > LONGEST_S and REPLAYS * step_s > SHARE_OF_FIRST * (now - self._first_s):
            self._is_too_long = True
            return
        self._n_left -= is_first
        self._n_grown += relations_due.are_longer(shapes, self._longest)
        self._longest = relations_due.joined(self._longest, shapes)
        try:
            with self.context.audits.spending() if is_first else contextlib.nullcontext():
                looked = look(self._replayer, update.microbatches[-1], self.context.names.cells(), self._known)
        except ReplayImpossible as why:
            self._give_up(str(why))
            return
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._give_up(f"the model raised {type(error).__name__}: {str(error)[:200]}")
            return
        finally:
            self._last_s = own_time.now()
            self._spent_s += 0.0 if is_first else self._last_s - now
        self._n_looked += 1
        if looked.held or looked.broken or looked.losses:
            self._n_left = 0
        self._note(looked, update.step)

    def at_end(self) -> None:
        """Say that nothing was asked because steps are long: to be healthy means less then."""
        if self._is_too_long and not self._n_looked and not self._is_off:
            self.context.warn("relations not asked for lack of time: all (`hypocenter run --relations` asks them)")

    def _is_again(self, step: int, shapes: Sequence[tuple[int, ...]], now: float) -> bool:
        """Return whether a look is due by what was asked for, or one more after the first."""
        if not self._is_auto:
            return self._is_due(step)
        if not self._n_looked:
            return False
        if relations_due.are_longer(shapes, self._longest) and self._n_grown < relations_due.MOST_GROWN:
            return True
        first_s = now if self._first_s is None else self._first_s
        left_s = max(relations_due.AGAIN_S, relations_due.SHARE * (now - first_s)) - self._spent_s
        return self._is_due(step) and self._step_s <= 4 * left_s  # as in torch

    def _note(self, looked: Looked, step: int) -> None:
        order = self.context.clock.next_order
        self.rows += [_row(each, step, order(), self._held.get(each.trial.relation, step)) for each in looked.broken]
        self._known |= {each.trial.relation for each in looked.broken}
        losses = [each for each in looked.losses if each.wrong.title not in self._told]
        self._told |= {each.wrong.title for each in losses}
        self.rows += [_row_of_loss(each, step, order()) for each in losses]
        self._held |= dict.fromkeys(looked.held, step)
        counts = len(looked.held) + len(looked.broken), len(looked.held)
        words = (*(f"{name}{rows.HOLDS}" for name in looked.held),
                 *(f"{name}{rows.NOT_ASKED}{why}" for name, why in looked.not_asked.items()))  # fmt: skip
        if counts[0] or words != self._said:
            self._said = words
            self.rows.append(replace(count_row(rows.SITE, rows.LOOKED, step, order(), counts), names=words))

    def _give_up(self, why: str) -> None:
        self._is_off = True
        if not self._is_auto:
            self.context.warn(f"relations were not looked at: {why}")


def _row(shown: Shown, step: int, order: int, held: int) -> Reading:
    trial = shown.trial
    row = number_row(shown.module, rows.RELATION, step, order, shown.size, module=shown.kind, call=step - held)
    return replace(row, op=trial.code, names=(trial.what, trial.whom, "", trial.relation), dtype=f"{shown.limit:.3g}")


def _row_of_loss(found: Misused, step: int, order: int) -> Reading:
    wrong = found.wrong
    row = number_row("", rows.LOSS, step, order, found.size)
    return replace(row, op=found.code, source=found.source, names=(wrong.title, wrong.why, wrong.remedy))
