"""Which backwards have added to which optimizer's gradients since its last step, and under which loss scale each.

A scale is known by the number of `update()` calls before it (its epoch), since reading it would wait for the device;
the values become known when an optimizer steps. What an optimizer's gradients hold is looked at only when a backward
comes under another epoch than an earlier one, as with several optimizers: zeroed meanwhile means that nothing is mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from hypocenter.tap.gradients import norms, to_host

MAX_LOOKS = 64  # at gradients, for whether they were zeroed: each waits for the device


@dataclass(slots=True)
class _Pending:
    """One optimizer between two of its steps."""

    optimizer: Any
    epochs: set[int] = field(default_factory=set)  # of the backwards that added to its gradients
    is_unscaled: bool = False
    n_late: int = 0  # backwards that added to gradients already unscaled
    ids: frozenset[int] = frozenset()  # of its parameters
    before: list[tuple[int, int]] = field(default_factory=list)  # (id, version) of its gradients before a backward


class Contributions:
    """Follows calls of backward, unscale_, update and step."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}
        self._epoch: dict[int, int] = {}  # id of a scaler -> updates so far
        self._scale: dict[tuple[int, int], float] = {}  # (id of a scaler, epoch) -> scale
        self._in_backward: int | None = None  # epoch of the backward that runs
        self._n_looks = 0

    def scale_changed(self, scaler_id: int) -> None:
        """`update()` was called."""
        self._epoch[scaler_id] = self._epoch.get(scaler_id, 0) + 1

    def unscaled(self, optimizer: Any) -> None:
        """`unscale_` was called by the program."""
        if optimizer is not None:
            self._of(optimizer).is_unscaled = True

    def is_unscaled(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether `unscale_` has been called for the optimizer of the first of these since its last step."""
        first = next((id(p) for p in parameters if p.grad is not None), None)
        return any(entry.is_unscaled and first in entry.ids for entry in self._pending.values())

    def before_backward(self, scaler_id: int | None) -> None:
        """A backward of a loss that this scaler has scaled; None: of any other."""
        self._in_backward = None if scaler_id is None else self._epoch.get(scaler_id, 0)
        if self._in_backward is None:
            return
        for entry in self._pending.values():
            is_mixed = bool(entry.epochs) and self._in_backward not in entry.epochs
            if (is_mixed or entry.is_unscaled) and not self._has_gradients(entry.optimizer):
                entry.epochs.clear()
                is_mixed = entry.is_unscaled = False
            entry.before = _state_of(entry.optimizer) if is_mixed or entry.is_unscaled else []

    def after_backward(self) -> None:
        """It has run: whose gradients has it changed?"""
        epoch, self._in_backward = self._in_backward, None
        if epoch is None:
            return
        for entry in self._pending.values():
            if entry.before and _state_of(entry.optimizer) == entry.before:
                continue
            entry.n_late += entry.is_unscaled and bool(entry.before)
            entry.epochs.add(epoch)

    def at_step(self, optimizer: Any, scaler_id: int, scale: float) -> tuple[list[float], int]:
        """The scales of this update's backwards that are not of the present epoch, and how many came too late."""
        epoch = self._epoch.get(scaler_id, 0)
        self._scale[scaler_id, epoch] = scale
        self._scale.pop((scaler_id, epoch - 8), None)
        entry = self._of(optimizer)
        others = [self._scale[scaler_id, e] for e in entry.epochs if e != epoch and (scaler_id, e) in self._scale]
        return others, entry.n_late

    def stepped(self, optimizer: Any) -> None:
        """Its gradients are used."""
        entry = self._of(optimizer)
        entry.epochs.clear()
        entry.is_unscaled, entry.n_late = False, 0

    def _of(self, optimizer: Any) -> _Pending:
        entry = self._pending.get(id(optimizer))
        if entry is None or entry.optimizer is not optimizer:
            entry = self._pending[id(optimizer)] = _Pending(optimizer, ids=frozenset(map(id, _parameters(optimizer))))
        return entry

    def _has_gradients(self, optimizer: Any) -> bool:
        """Whether any gradient is there that is not zero."""
        held = [p.grad for p in _parameters(optimizer) if p.grad is not None and p.grad.layout == torch.strided]
        if not held:
            return False
        self._n_looks += 1
        if self._n_looks > MAX_LOOKS:
            return False
        with torch.no_grad(), _disable_current_modes():  # what traces the program must not see our operators
            return any(norm != 0.0 for norm in to_host(norms(held)))


def _parameters(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def _state_of(optimizer: Any) -> list[tuple[int, int]]:
    """Identity and version of each gradient: a backward that adds to it changes one of them."""
    return [(id(p.grad), p.grad._version if p.grad is not None else 0) for p in _parameters(optimizer)]
