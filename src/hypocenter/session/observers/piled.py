"""Gradients that a backward for one optimizer leaves in the parameters of another, which uses them. For HC233.

Where models take turns (a generator and its critic), the loss of one often reaches the parameters of the other. Who
does not detach it, and sets gradients to zero only after a step, adds the two. A program may mean that: it is a note.
It does not mean it where the first update of this optimizer, before any of another, was made without, and from the
second on each uses what another line's backward has left in the step before: then the row says which share that is.
Nor where one loss asks for the contrary of the other: the row has the largest cosine of the two gradients.
What nobody added to since the optimizer's own update is its own gradient of the step before: HC232 tells of that.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.law_rows import PILED, SITE
from hypocenter.nouns import replace
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.source import user_line
from hypocenter.tap.weakly import Ref

TIMES = 4  # updates in a row
FEW = 4  # parameters of an optimizer
TELLING = 64  # elements: gradients of fewer point the other way by chance
LAST = 32  # step: what a program does, it does from the first one on
MOST_BACKWARDS = 1024  # whose lines are remembered

_Line = tuple[str, int]


@dataclass(slots=True)
class _Left:
    """What an update of another optimizer has left in the parameters of this one."""

    gradients: Sequence[tuple[Ref[Any], Ref[Any], int]]  # parameter, gradient, version
    n_backwards: int  # before it
    other: str
    lines: frozenset[_Line]  # that called backward since the last update of this optimizer
    values: Sequence[Any]  # copies of samples


class Piled(Observer[Observed]):
    """Writes a row for an optimizer whose gradients hold those that another one's update has left."""

    until = LAST

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._n_backwards = 0
        self._some: dict[int, Sequence[Ref[Any]]] = {}  # by id of an optimizer: some of its parameters
        self._left: dict[int, _Left] = {}
        self._used: dict[int, tuple[list[Ref[Any]], list[int]]] = {}  # by id of an optimizer: gradients, versions
        self._n_piled: dict[int, int] = {}
        self._cosines: dict[int, list[float]] = {}
        self._n_at_update: dict[int, int] = {}  # backwards before the last update of an optimizer
        self._lines: deque[_Line] = deque(maxlen=MOST_BACKWARDS)
        self._first: int | None = None  # the optimizer that was the first of all to make an update
        self._deferred = context.framework.deferred()

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Count the backward, and note which line of the program called it."""
        self._n_backwards += 1
        self._lines.append(user_line())

    def _lines_since(self, n_backwards: int) -> frozenset[_Line]:
        """Return the lines that called backward since there had been so many."""
        n = self._n_backwards - n_backwards
        return frozenset([*self._lines][-n:]) if n else frozenset()

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
            self._n_piled[key] = n_piled = self._n_piled.get(key, 0) + 1 if is_piled else 0
            if 0 < n_piled <= TIMES:
                cosines = self._cosines[key] = self._cosines.get(key, []) if n_piled > 1 else []
                self._measure(left, [g for g, _ in still], cosines, n_piled, is_meant=key != self._first)
        self._first = key if self._first is None else self._first
        self._n_at_update[key] = self._n_backwards
        own = update.ids
        for other, refs in self._some.items():
            some = [p for ref in refs if (p := ref()) is not None]
            with_gradients = [p for p in some if p.grad is not None and id(p) not in own]
            if other != key and len(with_gradients) == len(refs):
                versions = framework.versions([p.grad for p in with_gradients])
                if all(g() is p.grad for p, g in zip(with_gradients, self._used[other][0], strict=False)) and (
                    versions == self._used[other][1]
                ):
                    continue
                kept = [(Ref(p), Ref(p.grad), v) for p, v in zip(with_gradients, versions, strict=True)]
                held = [framework.sample(p.grad) for p in with_gradients]
                self._left[other] = _Left(
                    kept, self._n_backwards, type(update.optimizer).__name__,
                    self._lines_since(self._n_at_update[other]), [framework.copied(v) for v in held if v is not None],
                )  # fmt: skip
        self._some[key] = [Ref(p) for p, _ in update.gradients[:FEW]]
        used = [p.grad for p, _ in update.gradients[:FEW] if p.grad is not None]
        self._used[key] = [Ref(gradient) for gradient in used], framework.versions(used)

    def _measure(
        self, left: _Left, gradients: Sequence[Any], cosines: list[float], n_piled: int, *, is_meant: bool
    ) -> None:
        """Measure what was left and what came to it; the last time write the row, with the share if it is not meant."""
        framework = self.context.framework
        used = [found for g in gradients if (found := framework.sample(g)) is not None]
        if len(used) != len(left.values) or not used:
            if n_piled == TIMES:
                self._add(left, "", "")
            return
        is_meant = is_meant or not left.lines.isdisjoint(self._lines_since(left.n_backwards))
        wide = [(framework.wide(a), framework.wide(b)) for a, b in zip(left.values, used, strict=True)]
        products = [((a * a).sum(), ((b - a) * (b - a)).sum(), (a * (b - a)).sum()) for a, b in wide]
        is_telling = sum(math.prod(a.shape) for a, _ in wide) >= TELLING

        def read(host: Sequence[float]) -> None:
            before, own = (max(0.0, n) ** 0.5 for n in host[:2])
            cosines.append(host[2] / (before * own) if before * own > 0 and is_telling else 0.0)
            if n_piled == TIMES:
                share = "" if is_meant or not before + own > 0 else f"{before / (before + own):.3g}"
                self._add(left, share, f"{max(cosines):.3g}")

        self._deferred.add(framework.xp.stack([sum(each) for each in zip(*products, strict=True)]), read)

    def _add(self, left: _Left, share: str, cosine: str) -> None:
        clock, first = self.context.clock, left.gradients[0][0]()
        row = number_row(SITE, PILED, clock.step, clock.next_order(), TIMES, module=left.other)
        name = "" if first is None else self.context.label(first)
        self.rows.append(replace(row, op=share, names=(name, cosine)))
