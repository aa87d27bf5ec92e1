"""A step holds no more micro-batches than its losses are divided by. For HC232."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import SITE, TOO_MANY, UNBALANCED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.loss_divisors import n_divisions
from hypocenter.tap.weakly import Ref

HABIT = 2  # updates in a row of as many micro-batches as their losses are divided by


@dataclass(slots=True)
class _Habit:
    """Of the parameters of one optimizer."""

    first: Ref[Any]  # of them
    n: int = 0  # micro-batches
    n_updates: int = 0  # in a row
    n_added: int = -1  # micro-batches since it had no gradient; below 0: it is not known since when
    more: tuple[int, int] | None = None  # step and micro-batches of an update that was larger than usual


class Divisor(Observer):
    """Writes a row after one update of more micro-batches than its losses are divided by.

    An update of fewer is the end of the data; a program whose numbers change all the time has no habit, and one that
    keeps to the larger number means it (a schedule of batch sizes). Counted is from where a gradient is None: of one
    that is filled with zeros nobody knows when it was.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._habits: dict[int, _Habit] = {}  # by id of the first parameter
        self._is_told = False

    def at_rest(self) -> Iterable[str]:
        """With one micro-batch there is nothing to divide by."""
        return ("before_backward", "before_update") if not self._habits else ()

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Count the micro-batches that are added to a gradient."""
        for habit in self._habits.values():
            parameter = habit.first()
            if parameter is not None and parameter.grad is None:
                habit.n_added = 0
            habit.n_added += habit.n_added >= 0

    def before_update(self, update: Update) -> None:
        """Compare the number of micro-batches with what divides the loss of the last."""
        if self._is_told or not update.parameters or (len(update.microbatches) < 2 and not self._habits):
            return
        first = update.parameters[0]
        habit = self._habits.get(id(first))
        if habit is None or habit.first() is not first:
            habit = self._habits[id(first)] = _Habit(Ref(first))
        n = habit.n_added
        if 0 <= n < habit.n:
            return
        larger, habit.more = habit.more, None
        if larger is not None and n == habit.n:
            self._is_told, (step, n_larger) = True, larger
            order = self.context.clock.next_order()
            row = number_row(SITE, UNBALANCED, update.step, order, n_larger / habit.n, call=habit.n)
            self.rows.append(replace(row, module=TOO_MANY, op=str(update.step - step)))
        elif larger is None and n > habit.n and habit.n_updates >= HABIT and self._is_divided_by(habit.n, update):
            habit.more = update.step, n
        elif n > 1 and self._is_divided_by(n, update):
            habit.n, habit.n_updates = n, habit.n_updates + 1 if n == habit.n else 1
        else:
            habit.n, habit.n_updates = 0, 0

    def _is_divided_by(self, n: int, update: Update) -> bool:
        roots = update.microbatches[-1].roots if update.microbatches else ()
        return len(roots) == 1 and roots[0] is not None and n_divisions(self.context.tape, roots[0], n) == 1
