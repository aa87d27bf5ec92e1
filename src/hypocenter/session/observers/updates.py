"""Updates that a low-precision weight rounds away: intended against done, on samples of parameters in turn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypocenter.detect.update_rows import (
    GRAD_SHARE,
    LR_SHARE,
    PARAMS_STUCK,
    SITE,
    STUCK,
    UPDATE_LOST,
    UPDATE_ULPS,
)
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import is_low, name_of, ulp, wide_dtype
from hypocenter.session.observers.intended import STATES, family_of, intended
from hypocenter.session.observers.low_places import LowPlaces, Place, state_of, torch_optimizer
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import Deferred, sample

PER_UPDATE = 4  # parameters that are measured at one update
MEDIAN_OF = 1024  # elements that the median is taken of: it needs them sorted
DISAGREES = 0.02  # of the elements may do otherwise than the formula says; more: somebody else writes the weights
STUCK_UNKNOWN = 0.999  # the share where the update is not known: stochastic rounding moves one element in a hundred
_PLAIN_STATE = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum",
    "exp_inf", "mu", "nu", "ax", "prev", "step_size", "exp_avg_diff", "neg_pre_grad", "step",
})  # fmt: skip
"""State as large as the weight that holds no part of the weight; of any other (a float32 master weight, a
compensation, error feedback) the weight is only a view, and may stand still rightly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    place: Place
    weight: Tensor
    gradient: Tensor | None = None  # None: a loss scale was still in it, and the step took it out


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """Numbers of one parameter, on the host."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    family: str
    n: int
    n_lost: int
    median_ulps: float


class LostUpdates(Observer):
    """Compares weights before and after an update with what the optimizer meant to add (mechanism: lost updates)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._places = LowPlaces(lambda _, parameter: is_low(parameter) and parameter.requires_grad)
        self._before: list[_Before] = []
        self._deferred = Deferred()
        self._peaks: dict[str, float] = {}  # port -> largest so far
        self._shares: dict[str, float] = {}  # port -> of the largest so far, at this update

    def before_update(self, update: Update) -> None:
        """Copy samples of the weights whose turn it is."""
        self._deferred.read()
        optimizer = torch_optimizer(update.optimizer)
        self._before = []
        if optimizer is None:
            return
        places = self._places.next(optimizer, PER_UPDATE)
        if self._places.has_any(optimizer):
            self._note_peaks(optimizer, update)
        for place in places:
            if place.parameter.grad is None or _has_hidden_part(state_of(optimizer, place.parameter), place.parameter):
                continue
            values, gradient = sample(place.parameter), sample(place.parameter.grad)
            if values is not None and gradient is not None:
                kept = (
                    gradient.clone() if update.scaled is None else None
                )  # Nesterov's foreach form writes to gradients
                self._before.append(_Before(place=place, weight=values.clone(), gradient=kept))

    def _note_peaks(self, optimizer: torch.optim.Optimizer, update: Update) -> None:
        rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
        now = {GRAD_SHARE: update.check.total_norm, LR_SHARE: rate}
        for port, value in now.items():
            if isinstance(value, (int, float)) and math.isfinite(value):
                self._peaks[port] = peak = max(self._peaks.get(port, 0.0), value)
                self._shares[port] = value / peak if peak else 1.0

    def after_update(self, update: Update) -> None:
        """Compare."""
        before, self._before = self._before, []
        if before and not update.skipped:
            self._measure(before, update)

    @torch.no_grad()
    def _measure(self, before: Sequence[_Before], update: Update) -> None:
        optimizer = torch_optimizer(update.optimizer)
        if optimizer is None:
            return
        measured: list[_Measured] = []
        found = [(b, numbers) for b in before if (numbers := self._compare(optimizer, b)) is not None]
        for index, (each, numbers) in enumerate(found):
            is_last = index == len(found) - 1
            self._deferred.add(numbers, self._reader(each, optimizer, update.step, measured, is_last=is_last))

    def _compare(self, optimizer: torch.optim.Optimizer, before: _Before) -> Tensor | None:
        parameter, group = before.place.parameter, before.place.group
        state, wide = state_of(optimizer, parameter), wide_dtype(parameter.device)
        after = sample(parameter)
        grad = before.gradient
        if grad is None and parameter.grad is not None:
            grad = sample(parameter.grad)
        if after is None or grad is None or after.shape != before.weight.shape or grad.shape != after.shape:
            return None
        if _has_hidden_part(state, parameter):
            return None
        weight, grad = before.weight.to(wide), grad.to(wide)
        stayed = after.to(wide) == weight
        update = _intended_of(family_of(optimizer), group, weight, grad, state)
        spacing = ulp(weight, parameter.dtype)
        if update is None:
            return _numbers(grad != 0, None, stayed, torch.zeros_like(stayed))
        size = torch.where(torch.isfinite(update), update.abs(), torch.zeros_like(update)) / spacing
        # a quarter: below a power of two the numbers lie twice as dense
        disagrees = ((size < 0.25) & ~stayed) | ((size > 1.0) & stayed)
        return _numbers(grad != 0, size, stayed, disagrees)

    def _reader(
        self, before: _Before, optimizer: torch.optim.Optimizer, step: int, measured: list[_Measured], *, is_last: bool
    ) -> Any:
        parameter, family = before.place.parameter, family_of(optimizer)
        name, shape, shares = self.context.label(parameter), tuple(parameter.shape), dict(self._shares)

        def read(numbers: Sequence[float]) -> None:
            n, n_lost, n_gradient, n_stayed, n_disagree, size, median = numbers
            is_known = family and median >= 0 and n_disagree <= DISAGREES * size
            measured.append(
                _Measured(
                    name=name, dtype=name_of(parameter.dtype), shape=shape, family=family if is_known else "",
                    n=round(n if is_known else n_gradient), n_lost=round(n_lost if is_known else n_stayed),
                    median_ulps=median if is_known else -1.0,
                )
            )  # fmt: skip
            if is_last:
                self._write(measured, step, shares)

        return read

    def _write(self, measured: Sequence[_Measured], step: int, shares: Mapping[str, float]) -> None:
        order = self.context.clock.next_order
        for m in measured:
            self.rows.append(
                count_row(m.name, UPDATE_LOST, step, order(), (m.n, m.n_lost), dtype=m.dtype, shape=m.shape,
                          module=m.family)
            )  # fmt: skip
            if m.median_ulps >= 0:
                self.rows.append(
                    number_row(m.name, UPDATE_ULPS, step, order(), m.median_ulps, dtype=m.dtype, module=m.family)
                )
        moving = [m for m in measured if m.n]
        if not moving:
            return
        family = moving[0].family if all(m.family for m in moving) else ""
        counts = {
            UPDATE_LOST: (sum(m.n for m in moving), sum(m.n_lost for m in moving)),
            PARAMS_STUCK: (len(moving), sum(_is_stuck(m) for m in moving)),
        }
        for port, value in shares.items():
            self.rows.append(number_row(SITE, port, step, order(), value))
        for port, pair in counts.items():
            self.rows.append(count_row(SITE, port, step, order(), pair, dtype=moving[0].dtype, module=family))


def _is_stuck(measured: _Measured) -> bool:
    return measured.n_lost >= (STUCK if measured.family else STUCK_UNKNOWN) * measured.n


def _numbers(has_gradient: Tensor, size: Tensor | None, stayed: Tensor, disagrees: Tensor) -> Tensor:
    """Counts: to move, of these stayed; with a gradient, of these stayed; against the formula; all. Then the median."""
    moving = has_gradient if size is None else has_gradient & (size > 0)
    counts = [moving, moving & stayed, has_gradient, has_gradient & stayed, disagrees, torch.ones_like(stayed)]
    numbers = torch.stack(counts).sum(dim=1).to(wide_dtype(moving.device))
    return torch.cat([numbers, _median(size, moving).to(numbers.dtype)])


def _median(size: Tensor | None, moving: Tensor) -> Tensor:
    """Of the elements that are to move, 0 without any; -1 when the update is not known."""
    if size is None:
        return torch.full((1,), -1.0, dtype=torch.float32, device=moving.device)
    stride = -(-size.numel() // MEDIAN_OF)
    chosen, is_moving = size[::stride], moving[::stride]
    middle = torch.nanmedian(torch.where(is_moving, chosen, torch.full_like(chosen, torch.nan)))
    return torch.nan_to_num(middle, nan=0.0).reshape(1)


def _intended_of(
    family: str, group: Mapping[str, Any], weight: Tensor, grad: Tensor, state: Mapping[str, Any]
) -> Tensor | None:
    if not family:
        return None
    samples: dict[str, Any] = {"step": state["step"]} if "step" in state else {}
    for key in STATES[family]:
        if isinstance(value := state.get(key), Tensor):
            values = sample(value)
            if values is None or values.shape != weight.shape:
                return None
            samples[key] = values.to(weight.dtype)
    return intended(family, group, weight, grad, samples)


def _has_hidden_part(state: Mapping[str, Any], parameter: Tensor) -> bool:
    """Whether the optimizer keeps more of the weight than the weight itself shows."""
    return any(
        isinstance(value, Tensor) and value.shape == parameter.shape and key not in _PLAIN_STATE
        for key, value in state.items()
    )
