"""Which parameters of an optimizer are kept in a low format: a float32 run pays one look at all of them in 64 steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.session.framework import Framework

EVERY = 64  # updates between two looks at all parameters; the first of each group is looked at each time
DENSE = 32  # updates that are measured without a break; of the later ones
SPARSE = 16  # one in so many: what stands still does so for long


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A parameter in its optimizer."""

    parameter: Any
    group: Mapping[str, Any]


@dataclass(slots=True)
class _Known:
    n_updates: int
    places: Sequence[Place]
    turn: int = 0
    formats: Sequence[object] = ()


class LowPlaces:
    """Remembers, for each optimizer, the places that a predicate holds for, and whose turn it is."""

    def __init__(self, framework: Framework, is_wanted: Callable[[Any, Any], bool]) -> None:
        self._framework, self._is_wanted = framework, is_wanted
        self._known: weakref.WeakKeyDictionary[Any, _Known] = weakref.WeakKeyDictionary()

    def next(self, optimizer: Any, n: int) -> list[Place]:
        """Return at most n places whose turn it is at this update; none at an update that is left out."""
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = _Known(0, ())
        count, known.n_updates = known.n_updates, known.n_updates + 1
        formats = self._formats(optimizer)
        if count < 2 or count % EVERY == 0 or formats != known.formats:
            known.places, known.formats = self._look(optimizer), formats
        if not known.places or (count >= DENSE and count % SPARSE):
            return []
        size = len(known.places)
        start, known.turn = known.turn % size, (known.turn + n) % size
        return [known.places[(start + i) % size] for i in range(min(n, size))]

    def has_any(self, optimizer: Any) -> bool:
        """Return whether the last look found a place in this optimizer."""
        known = self._known.get(optimizer)
        return known is not None and bool(known.places)

    def _look(self, optimizer: Any) -> list[Place]:
        is_wanted = self._is_wanted
        pairs = ((p, group) for group in optimizer.param_groups for p in group["params"] if is_wanted(optimizer, p))
        return [Place(parameter=p, group=group) for p, group in pairs]

    def _formats(self, optimizer: Any) -> list[object]:
        """Return the formats of each group's first parameter and its state, which a cast of the whole changes."""
        found: list[object] = []
        for group in optimizer.param_groups:
            for parameter in group["params"][:1]:
                moment = self._framework.state_of(optimizer, parameter).get("exp_avg_sq")
                found += [len(group["params"]), parameter.dtype, None if moment is None else moment.dtype]
        return found
