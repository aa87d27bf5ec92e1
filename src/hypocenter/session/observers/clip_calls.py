"""Whether a clip to a norm acts on what the optimizer uses: on all of it, and before it is used. For HC238."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import CLIPPED_IN_PART, CLIPPED_IN_VAIN, SITE
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row

LOOKED = 4  # first updates that clip; what is so at each of them is told


@dataclass(slots=True)
class _Seen:
    """Of one optimizer, at its updates so far."""

    n_in_vain: int = 0  # with a clip that came after the update before, and none after backward
    n_of_nothing: int = 0  # with clips that were given no gradient at all
    n_in_part: int = 0  # with clips that left out the same parameters
    left_out: frozenset[str] = frozenset()
    n_looked: int = 0


class ClipCalls(Observer[Observed]):
    """Writes a row after the first updates of an optimizer, if their clips did not act, or on a part alone."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._seen: defaultdict[int, _Seen] = defaultdict(_Seen)  # by id of the optimizer's first parameter
        self._timely: list[Sequence[Any]] = []  # what was clipped since the last update, after a backward
        self._late: list[Sequence[Any]] = []  # and before one
        self._is_of_some = False  # a clip since the last update was given a gradient

    def before_clip(self, parameters: Sequence[Any], max_norm: float) -> None:
        """Who clips to infinity measures."""
        if math.isfinite(max_norm):
            (self._timely if self.context.tape.microbatches else self._late).append(parameters)
            self._is_of_some = self._is_of_some or any(p.grad is not None for p in parameters)

    def before_update(self, update: Update) -> None:
        """Gradients are final."""
        timely, late = self._timely, self._late
        if not (timely or late) or not update.parameters or not update.microbatches:
            return
        seen = self._seen[id(update.parameters[0])]
        if seen.n_looked >= LOOKED:
            return
        seen.n_looked += 1
        own = {id(parameter) for parameter, _ in update.gradients}
        clipped = {id(p) for parameters in timely for p in parameters}
        is_late = not own & clipped and any(id(p) in own for parameters in late for p in parameters)
        seen.n_in_vain += is_late
        seen.n_of_nothing += not self._is_of_some and not late
        left_out = frozenset(self.context.label(p) for p, _ in update.gradients if id(p) not in clipped)
        is_part = 0 < len(left_out) < len(own)
        seen.n_in_part += is_part and left_out == (seen.left_out or left_out)
        seen.left_out = left_out
        if seen.n_looked < LOOKED:
            return
        if seen.n_in_part == LOOKED:
            self._tell(update, min(left_out), CLIPPED_IN_PART, left_out)
        elif seen.n_in_vain == LOOKED:
            self._tell(update, SITE, CLIPPED_IN_VAIN, left_out)
        elif seen.n_of_nothing >= LOOKED - 1:  # a generator of parameters holds some once
            self._tell(update, SITE, CLIPPED_IN_VAIN, left_out, of="nothing")

    def _tell(self, update: Update, site: str, port: str, left_out: frozenset[str], of: str = "") -> None:
        order, n = self.context.clock.next_order(), len({id(parameter) for parameter, _ in update.gradients})
        self.rows.append(number_row(site, port, update.step, order, len(left_out), module=of, call=n))

    def after_update(self, update: Update) -> None:
        """What is clipped from here on is for the next, or too late."""
        self._timely, self._late, self._is_of_some = [], [], False
