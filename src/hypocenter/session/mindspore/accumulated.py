"""What becomes of the gradients of several micro-batches in MindSpore, where programs add them up themselves.

Seen are the gradients as each backward returns them and the one that the optimizer is given at last. The given one is a
combination of the others, each with a coefficient: found by least squares over a sample of elements. A micro-batch that
has coefficient 0 where another has not did not arrive (HC332), but where the program has begun anew: the first ones are
left out, and as many as usual are in it. Where it is the mean of so many, and once the sum of more divided by as many,
some were left over at the end of a pass (HC232). And where the given gradient is what adding up in the
format of the gradients gives, element by element, and not what adding up exactly gives, additions were lost (HC224).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.detect.law_rows import SITE, TOO_MANY, UNBALANCED
from hypocenter.formats import FORMATS
from hypocenter.nouns import replace
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.multiplier import multiplier
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers.accumulated_rows import addition_rows, not_added_rows
from hypocenter.session.observers.additions import Additions
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.mindspore.tape import GradCall

Array = NDArray[Any]
DENSE = 8  # steps that are all looked at; then as often as replicas are
PARAMETERS = 8  # of a step, in turn
ELEMENTS = 1024  # of each
MOST = 16  # micro-batches whose coefficients are looked for
MANY = 8  # from which on additions are looked at
HABIT = 2  # updates in a row that are means of so many micro-batches, before one of more
REPLAYS = 4  # for what a loss is divided by
LOST = 1e-3  # of the largest coefficient
FITS = 1e-2  # relative: what rounding, also to half precision, leaves of the difference between a gradient and its fit


@dataclass(slots=True)
class _Habit:
    """Of the updates of one optimizer."""

    usual: int = 0  # micro-batches of the last one that left none out
    n: int = 0  # of which they are the mean
    n_updates: int = 0  # in a row
    more: tuple[int, int] | None = None  # step and micro-batches of an update of more, divided by n


class Accumulated(Part):
    """Checks that the gradients of all micro-batches are in what the optimizer is given, from the 2nd such step on."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._is_several = False
        self._n_looked = self._turn = 0
        self._habits: defaultdict[int, _Habit] = defaultdict(_Habit)  # by id of the first parameter
        self._is_told = False  # that one was of too many
        self._replayer, self._n_replays = Replayer(context.names, context.paused), REPLAYS
        self._parts: dict[int, list[Array]] = {}  # id of a parameter -> its gradient in each micro-batch
        self._sums: tuple[int, str, Additions] | None = None  # of the parameter whose turn it is, and their format

    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None:
        """Keep samples of the gradients that backward gave, in steps that are looked at."""
        step = self.context.clock.step
        is_due = self._n_looked < DENSE or self._due(step)
        is_mean = not self._is_told and any(habit.n for habit in self._habits.values())
        if not self._is_several or not gradients or not (is_due or is_mean):
            return
        framework = self.context.framework
        pairs = list(zip(call.weights, gradients, strict=False))[: None if is_due else 1]
        if not call.number:
            self._parts, self._sums = {}, None
        stride = -(-len(pairs) // PARAMETERS)
        for parameter, gradient in pairs[step % stride :: stride]:
            values = framework.sample(gradient, ELEMENTS)
            if values is not None:
                self._parts.setdefault(id(parameter), []).append(framework.wide(values))
        low = [pair for pair in pairs if framework.is_low(pair[1])]
        if low:
            parameter, gradient = low[self._turn % len(low)]
            self._sums = self._sums or (id(parameter), framework.name_of(gradient.dtype), Additions(framework))
            values = framework.sample(gradient, ELEMENTS)
            if values is not None and self._sums[0] == id(parameter):
                self._sums[2].add(values, None)

    def before_update(self, update: Update) -> None:
        """Compare the samples with the gradients that the optimizer is given."""
        n = len(update.microbatches)
        self._is_several = self._is_several or n > 1
        parts, sums = {key: found for key, found in self._parts.items() if len(found) == n}, self._sums
        habit = self._habits[id(update.parameters[0]) if update.parameters else 0]
        self._parts, self._sums = {}, None
        if n < 2 or update.skipped or not update.check.is_finite or not (parts or sums):
            habit.usual = n
            return
        self._n_looked += 1
        if n > MOST or self._arrived(update, parts, habit):
            habit.usual = n
            self._is_mean(update, parts, habit)
        if sums is not None and sums[2].n_added == n >= MANY:
            self._turn += 1
            self._added_up(update, *sums)

    def _arrived(self, update: Update, parts: dict[int, list[Array]], habit: _Habit) -> bool:
        """Return whether none is left out of the gradients that the optimizer is given."""
        looked: list[list[tuple[str, int, int]]] = [[] for _ in update.microbatches]
        for parameter, gradient in update.gradients:
            given = self.context.framework.sample(gradient, ELEMENTS)
            found = parts.get(id(parameter))
            shares = None if found is None or given is None else _shares(np.stack(found), given.astype(np.float64))
            for microbatch, has_part in enumerate(shares or ()):
                n = int(np.count_nonzero(found[microbatch])) if found is not None else 0
                if n:
                    looked[microbatch].append((self.context.label(parameter), n, 0 if has_part else n))
        lost = [microbatch for microbatch, pairs in enumerate(looked) if any(n == n_lost for _, n, n_lost in pairs)]
        if lost and lost == list(range(len(looked) - habit.usual)):
            return False  # as drop_last does with what is left over of a pass
        for microbatch, pairs in enumerate(looked):
            self.rows += not_added_rows(pairs, update.step, microbatch, self.context.clock.next_order)

        return not lost

    def _is_mean(self, update: Update, parts: dict[int, list[Array]], habit: _Habit) -> None:
        """Note if it is the sum of more than what it is divided by, between updates that are means."""
        n = len(update.microbatches)
        if self._is_told or not parts or n < habit.n:  # fewer: the end of the data
            return
        is_mean_of = partial(self._is_mean_of, update, self._factor(update, parts))
        larger, habit.more = habit.more, None
        if larger is not None and n == habit.n:
            self._is_told, (step, n_larger) = True, larger
            order = self.context.clock.next_order()
            row = number_row(SITE, UNBALANCED, update.step, order, n_larger / n, module=TOO_MANY, call=n)
            self.rows.append(replace(row, op=str(update.step - step)))
        elif larger is None and n > habit.n and habit.n_updates >= HABIT and is_mean_of(habit.n):
            habit.more = update.step, n
        elif is_mean_of(n, is_known=n == habit.n):
            habit.n, habit.n_updates = n, habit.n_updates + 1 if n == habit.n else 1
        else:
            habit.n = habit.n_updates = 0

    def _is_mean_of(self, update: Update, factor: float, n: int, *, is_known: bool = False) -> bool:
        """Return whether each micro-batch is divided by so many: its gradient, or its loss by what a replay tells."""
        if not _is_one(factor) or is_known or not self._n_replays or not self.context.audits.is_planned(1):
            return _is_one(factor * n) or (is_known and _is_one(factor))
        self._n_replays -= 1
        try:
            found = multiplier(self._replayer, update.microbatches[-1], must_leave_no_trace=True)
        except Exception:  # the user's own code runs here: anything may come out of it
            self._n_replays = 0
            return False
        return found is not None and _is_one(found * n)

    def _factor(self, update: Update, parts: dict[int, list[Array]]) -> float:
        """Return what the gradients that were looked at are of the sum of their micro-batches; NaN if no one number."""
        factors: list[float] = []
        for parameter, gradient in update.gradients:
            found, given = parts.get(id(parameter)), self.context.framework.sample(gradient, ELEMENTS)
            if found is None or given is None:
                continue
            total, given = np.stack(found).astype(np.float64).sum(0), given.astype(np.float64)
            if not (square := float(total @ total)) > 0:
                continue
            factors.append(float(given @ total) / square)
            if not np.linalg.norm(given - factors[-1] * total) <= FITS * np.linalg.norm(given):
                return math.nan
        return factors[0] if factors and max(factors) - min(factors) <= FITS * max(factors) else math.nan

    def _added_up(self, update: Update, key: int, dtype: str, sums: Additions) -> None:
        framework = self.context.framework
        pair = next(((p, g) for p, g in update.gradients if id(p) == key), None)
        numbers, given = sums.numbers(), None if pair is None else framework.sample(pair[1], ELEMENTS)
        if pair is None or numbers is None or given is None or sums.own is None or sums.exact is None:
            return
        given, eps = given.astype(np.float64), FORMATS[dtype].eps
        if _is_multiple(given, framework.wide(sums.own), eps) and not _is_multiple(given, sums.exact, eps):
            self.rows += addition_rows(
                self.context.label(pair[0]), dtype, tuple(pair[0].shape), numbers.tolist(), n_added=sums.n_added,
                step=update.step, order=self.context.clock.next_order,
            )  # fmt: skip


def _shares(parts: Array, given: Array) -> list[bool] | None:
    """Return whether each part is in the given sum; None where that cannot be told, or the sum has other parts too."""
    sizes = np.linalg.norm(parts, axis=1)
    if not sizes.any() or not math.isfinite(sizes.sum()):
        return None
    unit = sizes.max()
    found = np.linalg.lstsq(parts.T / unit, given, rcond=1e-6)[0]  # of parts that are alike each gets the same
    left, largest = np.linalg.norm(given - found @ parts / unit), np.abs(found).max()
    if not largest > 0 or left > FITS * largest * sizes[sizes > 0].min() / unit:
        return None
    return [bool(abs(share) > LOST * largest or not size) for share, size in zip(found, sizes, strict=True)]


def _is_one(number: float) -> bool:
    return abs(number - 1.0) <= FITS


def _is_multiple(given: Array, own: Array, eps: float) -> bool:
    """Return whether one is the other times a number, but for the rounding of that product."""
    square = float(own @ own)
    factor = float(given @ own) / square if square > 0 else 0.0
    return factor != 0 and bool((np.abs(given - factor * own) <= 2 * eps * np.abs(factor * own)).mean() > 1 - LOST)
