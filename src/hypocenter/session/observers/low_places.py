"""Which parameters of an optimizer are kept in a low format: a float32 run pays one look at all of them in 64 steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.session.framework import Framework
from hypocenter.tap.weakly import Ref

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
    optimizer: Callable[[], Any]  # a weak reference
    n_updates: int = 0
    places: Sequence[Place] = ()
    turn: int = 0
    formats: Sequence[object] = ()
    is_wide: bool = False


class LowPlaces:
    """Remembers, for each optimizer, the places that a predicate holds for, and whose turn it is."""

    def __init__(self, framework: Framework, is_wanted: Callable[[Any, Any], bool]) -> None:
        self._framework, self._is_wanted = framework, is_wanted
        self._known: dict[int, _Known] = {}  # by id of the optimizer

    def next(self, optimizer: Any, n: int) -> list[Place]:
        """Return at most n places whose turn it is at this update; none at an update that is left out."""
        key = id(optimizer)
        known = self._known.get(key)
        if known is None or known.optimizer() is not optimizer:
            known = self._known[key] = _Known(Ref(optimizer, _popping(self._known, key)))
        count, known.n_updates = known.n_updates, known.n_updates + 1
        formats = self._formats(optimizer)
        if count < 2 or count % EVERY == 0 or formats != known.formats:
            known.places, known.formats = self._look(optimizer), formats
            known.is_wide = self._has_wide_counters(optimizer)
        if not known.places or (count >= DENSE and count % SPARSE):
            return []
        size = len(known.places)
        start, known.turn = known.turn % size, (known.turn + n) % size
        return [known.places[(start + i) % size] for i in range(min(n, size))]

    @property
    def are_any(self) -> bool:
        """Whether there are such places in any optimizer."""
        return any(known.places for known in self._known.values())

    @property
    def are_all_wide(self) -> bool:
        """Whether every optimizer counts in float32, or in Python."""
        return all(known.is_wide for known in self._known.values())

    def has_any(self, optimizer: Any) -> bool:
        """Return whether the last look found a place in this optimizer."""
        known = self._known.get(id(optimizer))
        return known is not None and bool(known.places)

    def has_wide_counters(self, optimizer: Any) -> bool:
        """Return whether every group's first parameter has state, and no step counter in a low format, at `next`."""
        known = self._known.get(id(optimizer))
        return known is not None and known.is_wide

    def _look(self, optimizer: Any) -> list[Place]:
        is_wanted = self._is_wanted
        pairs = ((p, group) for group in optimizer.param_groups for p in group["params"] if is_wanted(optimizer, p))
        return [Place(parameter=p, group=group) for p, group in pairs]

    def _formats(self, optimizer: Any) -> list[object]:
        """Return the formats of each group's first parameter and its state, which a cast of the whole changes."""
        found: list[object] = []
        for group in optimizer.param_groups:
            for parameter in group["params"][:1]:
                state = self._framework.state_of(optimizer, parameter)
                moment, counter = state.get("exp_avg_sq"), getattr(state.get("step"), "dtype", None)
                found += [len(group["params"]), parameter.dtype, None if moment is None else moment.dtype, counter]
        return found

    def _has_wide_counters(self, optimizer: Any) -> bool:
        firsts = [parameter for group in optimizer.param_groups for parameter in group["params"][:1]]
        states = [self._framework.state_of(optimizer, parameter) for parameter in firsts]
        return all(bool(state) and not self._framework.is_low(state.get("step")) for state in states)


def _popping(known: dict[int, _Known], key: int) -> Callable[[object], object]:
    """Return a function that forgets an optimizer that is gone, and holds none."""
    return lambda _: known.pop(key, None)
