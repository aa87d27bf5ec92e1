"""Gradients that a backward for one optimizer leaves in the parameters of another, which uses them. For HC233.

Where models take turns (a generator and its critic), the loss of one often reaches the parameters of the other. Who
does not detach it, and sets gradients to zero only after a step, adds the two. A program may mean that: it is a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import PILED, SITE
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.weakly import Ref

TIMES = 4  # updates in a row
FEW = 4  # parameters of an optimizer
LAST = 32  # step: what a program does, it does from the first one on


@dataclass(slots=True)
class _Left:
    """What an update of another optimizer has left in the parameters of this one."""

    gradients: Sequence[tuple[Ref[Any], Ref[Any], int]]  # parameter, gradient, version
    n_backwards: int  # before it
    other: str


class Piled(Observer[Observed]):
    """Writes a row for an optimizer whose gradients hold those that another one's update has left."""

    until = LAST

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._n_backwards = 0
        self._some: dict[int, Sequence[Ref[Any]]] = {}  # by id of an optimizer: some of its parameters
        self._left: dict[int, _Left] = {}
        self._n_piled: dict[int, int] = {}

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Count the backward."""
        self._n_backwards += 1

    def before_update(self, update: Update) -> None:
        """Find out if the gradients hold what another optimizer's update has left in them."""
        if update.optimizer is None or not update.parameters:
            return
        key, framework = id(update.optimizer), self.context.framework
        left = self._left.pop(key, None)
        if left is not None:
            held = [(p(), g(), v) for p, g, v in left.gradients]
            still = [(g, v) for p, g, v in held if p is not None and g is not None and p.grad is g]
            n = self._n_backwards - left.n_backwards
            now = framework.versions([g for g, _ in still])
            # each backward adds once; who sets them to zero writes once more, or puts others there
            is_piled = n > 0 and len(still) == len(left.gradients) and all(
                b - a == n for (_, a), b in zip(still, now, strict=True)
            )  # fmt: skip
            self._n_piled[key] = self._n_piled.get(key, 0) + 1 if is_piled else 0
            if self._n_piled[key] == TIMES:
                order = self.context.clock.next_order()
                row = number_row(SITE, PILED, update.step, order, TIMES, module=left.other)
                self.rows.append(row)
        own = {id(p) for p in update.parameters}
        for other, refs in self._some.items():
            some = [p for ref in refs if (p := ref()) is not None]
            with_gradients = [p for p in some if p.grad is not None and id(p) not in own]
            if other != key and len(with_gradients) == len(refs):
                versions = framework.versions([p.grad for p in with_gradients])
                kept = [(Ref(p), Ref(p.grad), v) for p, v in zip(with_gradients, versions, strict=True)]
                self._left[other] = _Left(kept, self._n_backwards, type(update.optimizer).__name__)
        self._some[key] = [Ref(p) for p, _ in update.gradients[:FEW]]
