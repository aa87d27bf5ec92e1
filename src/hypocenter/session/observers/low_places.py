"""Which parameters of an optimizer are kept in a low format: a float32 run pays one look at all of them in 16 steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")
EVERY = 16  # updates between two looks at all parameters; the first of each group is looked at each time
DENSE = 64  # updates that are measured without a break; of the later ones
SPARSE = 4  # every fourth


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A parameter in its optimizer."""

    parameter: Tensor
    group: Mapping[str, Any]


@dataclass(slots=True)
class _Known:
    n_updates: int
    places: Sequence[Place]
    turn: int = 0
    formats: Sequence[object] = ()


def torch_optimizer(optimizer: Any) -> torch.optim.Optimizer | None:
    """The torch optimizer in it (accelerate wraps one); None for a framework's own, whose weights are copies."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer) and optimizer is not inner:
        return torch_optimizer(inner)
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def state_of(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Mapping[str, Any]:
    """The state of a parameter; asking with [] would make an entry in the user's optimizer."""
    return cast("Mapping[str, Any]", optimizer.state.get(parameter) or {})


class LowPlaces:
    """Remembers, for each optimizer, the places that a predicate holds for, and whose turn it is."""

    def __init__(self, is_wanted: Callable[[torch.optim.Optimizer, Place], bool]) -> None:
        self._is_wanted = is_wanted
        self._known: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Known] = weakref.WeakKeyDictionary()

    def next(self, optimizer: torch.optim.Optimizer, n: int) -> list[Place]:
        """The places whose turn it is at this update, at most n; none at an update that is left out."""
        known = self._known.setdefault(optimizer, _Known(0, ()))
        formats = _formats(optimizer)
        if known.n_updates < 2 or known.n_updates % EVERY == 0 or formats != known.formats:
            known.places, known.formats = self._look(optimizer), formats
        count = known.n_updates
        known.n_updates += 1
        if not known.places or (count >= DENSE and count % SPARSE):
            return []
        size = len(known.places)
        start, known.turn = known.turn % size, (known.turn + n) % size
        return [known.places[(start + i) % size] for i in range(min(n, size))]

    def _look(self, optimizer: torch.optim.Optimizer) -> list[Place]:
        places = (Place(parameter=p, group=g) for g in optimizer.param_groups for p in g["params"])
        return [place for place in places if self._is_wanted(optimizer, place)]


def _formats(optimizer: torch.optim.Optimizer) -> list[object]:
    """Of the first parameter of each group and of its state: what a cast of the whole changes."""
    found: list[object] = []
    for group in optimizer.param_groups:
        for parameter in group["params"][:1]:
            state = state_of(optimizer, parameter)
            found += [len(group["params"]), parameter.dtype, getattr(state.get("exp_avg_sq"), "dtype", None)]
    return found
