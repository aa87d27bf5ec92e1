"""Whether the parameters that got gradients moved: what they were at the first updates against the end of the run.

Of each parameter a few values and its norm are kept, which is exact enough: a parameter counts as still only if none of
the values and not the norm has changed by a bit. At the end of the run there is one transfer to the host, none before.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.detect.misuse import STILL, TRAINED
from hypocenter.session.check import scalar_reading
from hypocenter.session.observer import Observer, Update
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.weakly import Ref

_FIRST_UPDATES = 2  # of each optimizer: in the very first a closure may not have run yet
_VALUES = 64  # of a parameter, evenly spread


@dataclass(frozen=True, slots=True)
class _Before:
    parameter: weakref.ref[torch.Tensor]
    values: torch.Tensor
    norm: torch.Tensor


class StillParameters(Observer):
    """Tells at the end of the run if most parameters stood still; keeps silent otherwise."""

    _n_updates: dict[int, int]
    _before: dict[int, _Before]

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._n_updates, self._before = {}, {}

    def at_rest(self) -> Iterable[str]:
        """Only the first updates of an optimizer are looked at."""
        return ("before_update",) if min(self._n_updates.values(), default=0) >= _FIRST_UPDATES else ()

    def before_update(self, update: Update) -> None:
        """Keep the values of parameters that are about to be updated for the first time."""
        key = id(update.optimizer)
        n_seen = self._n_updates.get(key, 0)
        if n_seen >= _FIRST_UPDATES:
            return
        self._n_updates[key] = n_seen + 1
        zero = {name for name, norm in update.check.grad_norms.items() if norm == 0}
        found = [
            (p, values) for p, _ in update.gradients
            if id(p) not in self._before and (values := local(p)) is not None
            and self.context.label(p) not in zero
        ]  # fmt: skip
        if not found:
            return
        for (parameter, values), norm in zip(found, norms([v for _, v in found]), strict=True):
            self._before[id(parameter)] = _Before(Ref(parameter), _some(values), norm)

    def at_end(self) -> None:
        """Compare the parameters with what they were at the first updates."""
        alive = [
            (b, v) for b in self._before.values() if (p := b.parameter()) is not None and (v := local(p)) is not None
        ]
        if not alive:
            return
        now = norms([values for _, values in alive])
        same = [
            (before.norm == norm) & _equal(before.values, _some(values))
            for (before, values), norm in zip(alive, now, strict=True)
        ]  # fmt: skip
        n_still = int(sum(to_host([one.float() for one in same])))
        if 2 * n_still > len(alive):
            step = max(0, self.context.clock.step - 1)
            for order, (site, n) in enumerate(((TRAINED, len(alive)), (STILL, n_still))):
                self.rows.append(scalar_reading(site, "optimizer", float(n), step, order))


def _some(values: torch.Tensor) -> torch.Tensor:
    flat = values.detach().flatten()
    return flat[:: max(1, flat.numel() // _VALUES)].clone()


def _equal(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    if before.shape != now.shape or before.dtype != now.dtype or before.device != now.device:
        return torch.zeros((), dtype=torch.bool, device=now.device)
    return (before == now).all()
