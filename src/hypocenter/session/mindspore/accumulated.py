"""What becomes of the gradients of several micro-batches in MindSpore, where programs add them up themselves.

Seen are the gradients as each backward returns them and the one that the optimizer is given at last. The given one is a
combination of the others, each with a coefficient: found by least squares over a sample of elements. A micro-batch that
has coefficient 0 where another has not did not arrive (HC332). And where the given gradient is what adding up in the
format of the gradients gives, element by element, and not what adding up exactly gives, additions were lost (HC224).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter import schedule
from hypocenter.formats import FORMATS
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.observers.accumulated_rows import addition_rows, not_added_rows
from hypocenter.session.observers.additions import Additions
from hypocenter.tap.mindspore.tape import GradCall

Array = NDArray[Any]
DENSE = 8  # steps that are all looked at; then as often as replicas are
PARAMETERS = 8  # of a step, in turn
ELEMENTS = 1024  # of each
MOST = 16  # micro-batches whose coefficients are looked for
MANY = 8  # from which on additions are looked at
LOST = 1e-3  # of the largest coefficient
FITS = 1e-2  # relative: what rounding, also to half precision, leaves of the difference between a gradient and its fit


class Accumulated(Part):
    """Checks that the gradients of all micro-batches are in what the optimizer is given, from the 2nd such step on."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.replicas)
        self._is_several = False
        self._n_looked = self._turn = 0
        self._parts: dict[int, list[Array]] = {}  # id of a parameter -> its gradient in each micro-batch
        self._sums: tuple[int, str, Additions] | None = None  # of the parameter whose turn it is, and their format

    def end_microbatch(self, call: GradCall, gradients: Sequence[Any]) -> None:
        """Keep samples of the gradients that backward gave, in steps that are looked at."""
        step = self.context.clock.step
        if not self._is_several or not gradients or not (self._n_looked < DENSE or self._due(step)):
            return
        framework = self.context.framework
        pairs = list(zip(call.weights, gradients, strict=False))
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
        parts, sums = self._parts, self._sums
        self._parts, self._sums = {}, None
        if n < 2 or update.skipped or not update.check.is_finite or not (parts or sums):
            return
        self._n_looked += 1
        if n <= MOST:
            self._arrived(update, {key: found for key, found in parts.items() if len(found) == n})
        if sums is not None and sums[2].n_added == n >= MANY:
            self._turn += 1
            self._added_up(update, *sums)

    def _arrived(self, update: Update, parts: dict[int, list[Array]]) -> None:
        looked: list[list[tuple[str, int, int]]] = [[] for _ in update.microbatches]
        for parameter, gradient in update.gradients:
            given = self.context.framework.sample(gradient, ELEMENTS)
            found = parts.get(id(parameter))
            shares = None if found is None or given is None else _shares(np.stack(found), given.astype(np.float64))
            for microbatch, has_part in enumerate(shares or ()):
                n = int(np.count_nonzero(found[microbatch])) if found is not None else 0
                if n:
                    looked[microbatch].append((self.context.label(parameter), n, 0 if has_part else n))
        for microbatch, pairs in enumerate(looked):
            self.rows += not_added_rows(pairs, update.step, microbatch, self.context.clock.next_order)

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


def _is_multiple(given: Array, own: Array, eps: float) -> bool:
    """Return whether one is the other times a number, but for the rounding of that product."""
    square = float(own @ own)
    factor = float(given @ own) / square if square > 0 else 0.0
    return factor != 0 and bool((np.abs(given - factor * own) <= 2 * eps * np.abs(factor * own)).mean() > 1 - LOST)
