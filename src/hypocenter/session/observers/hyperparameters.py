"""Hyper-parameters that a low format rounds: tensors in param_groups, and numbers applied to low-precision state."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from hypocenter.detect.update_rows import HYPER, HYPER_ROUNDED
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import is_low, name_of, rounded
from hypocenter.session.observers.low_places import EVERY, state_of, torch_optimizer
from hypocenter.session.observers.optimizer_rows import number_row

_FACTORS = ("betas", "beta", "momentum", "alpha", "rho", "decay")  # what state is multiplied by


class Hyperparameters(Observer):
    """Reads param_groups at the first updates and then rarely; rows for each one that meets a low format."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._said: set[tuple[str, str, float]] = set()

    def after_update(self, update: Update) -> None:
        """State exists now."""
        optimizer = torch_optimizer(update.optimizer)
        if optimizer is None or update.skipped:
            return
        count = self._n_updates.get(optimizer, 0)
        self._n_updates[optimizer] = count + 1
        if count >= 2 and count % EVERY:
            return
        for index, group in enumerate(optimizer.param_groups):
            dtype = _state_dtype(optimizer, group)
            for name, value, is_factor in _numbers(group):
                if not is_factor and group.get("fused"):
                    continue  # a fused kernel adds eps in float32, whatever the state's format
                self._note(f"param_groups[{index}].{name}", value, dtype, type(optimizer).__name__, update.step,
                           is_factor=is_factor)  # fmt: skip

    def _note(
        self, site: str, value: Any, state: torch.dtype | None, optimizer: str, step: int, *, is_factor: bool
    ) -> None:
        own = value.dtype if is_low(value) else None
        dtype = own if own is not None else state
        if dtype is None or not (is_factor or site.endswith(".eps")):
            return
        given = float(value)
        there = given if own is not None else rounded(given, dtype)
        if (site, name_of(dtype), given) in self._said:
            return
        self._said.add((site, name_of(dtype), given))
        order, module = self.context.clock.next_order, f"{optimizer} {'tensor' if own is not None else 'state'}"
        for port, number in ((HYPER, given), (HYPER_ROUNDED, there)):
            self.rows.append(number_row(site, port, step, order(), number, dtype=name_of(dtype), module=module))


def _numbers(group: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """(name, value, whether state is multiplied by it) of what may round badly."""
    for key in (*_FACTORS, "eps"):
        value = group.get(key)
        for index, each in enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)]:
            if (isinstance(each, (int, float)) and not isinstance(each, bool)) or (
                isinstance(each, Tensor) and each.numel() == 1
            ):
                yield (key if index is None else f"{key}[{index}]"), each, key != "eps"


def _state_dtype(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> torch.dtype | None:
    """The low format of the first element-wise state in a group; None when it is not low."""
    for parameter in group["params"]:
        for value in state_of(optimizer, parameter).values():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                return value.dtype if is_low(value) else None
    return None
