"""What is frozen stays where it is, although an optimizer holds it. For HC262.

A parameter whose `requires_grad` is switched off gets no gradient any more; but where its old one is not set to None,
the optimizer goes on with it: momentum carries it on, and weight decay draws it to zero. Where the old one is left as
it is, each update follows it once more.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.detect.law_rows import FROZEN_MOVES, OLD
from hypocenter.nouns import replace
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.observers.sampled import Deferred, sample

EVERY = 4  # updates
TIMES = 2  # looks in a row at which the optimizer has moved it
PARAMETERS, ELEMENTS = 4, 64


class FrozenMoves(Observer):
    """Writes a row for the first parameter that was trained, is frozen, and goes on moving."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._deferred = Deferred(context.ride)
        self._trained: set[int] = set()  # ids of those that have asked for a gradient
        self._before: list[tuple[Tensor, Tensor]] = []
        self._gradients: dict[int, tuple[int, int]] = {}  # of what was frozen at the look before: which, its version
        self._kind = ""
        self._n_moved = self._n_updates = 0
        self._n_frozen = self._since = 0  # and the first look at which it moved
        self._trained_at = 0  # the last look at which nothing was frozen

    def before_update(self, update: Update) -> None:
        """Keep what is frozen and has a gradient of zeros, or the one that it had at the look before."""
        if self._deferred.waiting:
            self._deferred.read()
        self._before, self._n_updates = [], self._n_updates + 1
        if self._n_moved >= TIMES or (self._n_updates > EVERY and self._n_updates % EVERY):
            return
        if self._n_updates <= EVERY:
            self._trained.update(id(p) for p in update.parameters if p.requires_grad)
            return
        norms, label = update.check.grad_norms, self.context.label
        frozen = [p for p in update.parameters if not p.requires_grad and p.grad is not None and id(p) in self._trained]
        known, self._gradients = self._gradients, {}
        self._n_frozen = len(frozen)
        self._trained_at = self._trained_at if frozen else update.step
        for parameter in frozen[:PARAMETERS]:
            if (gradient := parameter.grad) is None:
                continue
            mine = self._gradients[id(parameter)] = (id(gradient), gradient._version)
            is_zero = norms.get(label(parameter), 0.0) == 0.0
            values = sample(parameter.detach(), ELEMENTS) if is_zero or known.get(id(parameter)) == mine else None
            if values is not None:
                self._before.append((parameter, values.clone()))
                self._kind = "" if is_zero else OLD

    def after_update(self, update: Update) -> None:
        """Has it moved?"""
        before, self._before = self._before, []
        if not before or update.skipped:
            return
        now = [sample(p.detach(), ELEMENTS) for p, _ in before]
        has_moved = [
            (values != after).any().float()
            for (_, values), after in zip(before, now, strict=True)
            if after is not None and after.shape == values.shape
        ]
        name, kind, step = self.context.label(before[0][0]), type(update.optimizer).__name__, update.step
        gradient = self._kind
        if has_moved:
            self._deferred.add(torch.stack(has_moved), lambda host: self._note(host, name, kind, step, gradient))

    def _note(self, moved: Sequence[float], name: str, kind: str, step: int, gradient: str) -> None:
        self._n_moved = self._n_moved + 1 if moved[0] else 0
        if self._n_moved == 1:
            self._since = step
        if self._n_moved == TIMES:
            order = self.context.clock.next_order()
            row = number_row(name, FROZEN_MOVES, step, order, self._n_frozen, module=kind, call=step - self._since)
            self.rows.append(replace(row, op=gradient, names=(str(self._trained_at),)))
