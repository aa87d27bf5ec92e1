"""While accelerate holds updates back, no optimizer steps by a loss that it has divided for all of them. For HC232.

An optimizer that `prepare()` was not given steps on each micro-batch, by a gradient that is too small by the number of
those that were to be added up. One that steps by losses of its own, which accelerate has not divided, is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import HELD_BACK, SITE, UNBALANCED
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.loss_divisors import n_divisions
from hypocenter.tap.weakly import Ref

TIMES = 3  # updates
LAST = 64  # step: what a program does, it does from the first one on


@dataclass(slots=True)
class _Stepping:
    """Of one optimizer, while updates are held back."""

    first: Ref[Any]  # of its parameters
    was_clear: bool = False  # it had no gradient when the last backward began
    n_updates: int = 0
    since: int = 0  # step of the first of them


class HeldBack(Observer):
    """Writes a row for the first optimizer that steps on while accelerate holds updates back."""

    until = LAST

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._stepping: dict[int, _Stepping] = {}  # by id of the first parameter
        self._is_told = False

    def before_backward(self, roots: Sequence[Any]) -> None:
        """See whether what comes is added to anything."""
        for each in self._stepping.values():
            first = each.first()
            each.was_clear = first is not None and first.grad is None

    def before_update(self, update: Update) -> None:
        """Count those that accelerate would not have made."""
        n = n_held_back()
        if n < 2 or self._is_told or not update.parameters or not update.microbatches:
            return
        first, roots = update.parameters[0], update.microbatches[-1].roots
        each = self._stepping.get(id(first))
        if each is None or each.first() is not first:
            each = self._stepping[id(first)] = _Stepping(Ref(first), since=update.step)
        is_alone = (each.was_clear or not each.n_updates) and len(update.microbatches) == 1
        if not is_alone or len(roots) != 1 or roots[0] is None or n_divisions(self.context.tape, roots[0], n) != 1:
            return
        each.n_updates += 1
        if each.n_updates == TIMES:
            self._is_told = True
            order, ago = self.context.clock.next_order(), update.step - each.since
            row = number_row(SITE, UNBALANCED, update.step, order, 1.0 / n, call=ago)
            self.rows.append(replace(row, module=HELD_BACK, op=str(n)))


def n_held_back() -> int:
    """Return how many micro-batches accelerate adds up, while it holds the update back; else 0."""
    held: Any = getattr(getattr(sys.modules.get("accelerate.state"), "GradientState", None), "_shared_state", {})
    if held.get("sync_gradients", True):
        return 0
    n = held.get("plugin_kwargs", {}).get("num_steps", 1)
    return n if isinstance(n, int) else 0
