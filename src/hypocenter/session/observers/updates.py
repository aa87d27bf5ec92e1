"""Updates that a low-precision weight rounds away: intended against done, on samples of parameters in turn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.update_rows import (
    GRAD_SHARE,
    LR_SHARE,
    PARAMS_STUCK,
    SITE,
    STUCK,
    UPDATE_LOST,
    UPDATE_ULPS,
)
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.framework import Framework
from hypocenter.session.observers.intended import STATES, intended
from hypocenter.session.observers.low_places import LowPlaces, Place
from hypocenter.session.observers.optimizer_rows import count_row, number_row

Array = Any  # see hypocenter.session.framework

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
    weight: Array
    gradient: Array | None = None  # None: a loss scale was still in it, and the step took it out


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


class LostUpdates(Observer[Observed]):
    """Compares weights before and after an update with what the optimizer meant to add (mechanism: lost updates)."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._framework = framework = context.framework
        self._places = LowPlaces(framework, lambda _, p: framework.is_low(p) and p.requires_grad)
        self._before: list[_Before] = []
        self._deferred = framework.deferred()
        self._peaks: dict[str, float] = {}  # port -> largest so far
        self._shares: dict[str, float] = {}  # port -> of the largest so far, at this update

    def at_rest(self) -> Iterable[str]:
        """Without parameters in half precision there is nothing to lose."""
        return ("before_update", "after_update") if not (self._before or self._places.are_any) else ()

    def before_update(self, update: Update) -> None:
        """Copy samples of the weights whose turn it is."""
        self._deferred.read()
        framework = self._framework
        optimizer = self._framework.optimizer(update.optimizer)
        self._before = []
        if optimizer is None:
            return
        places = self._places.next(optimizer, PER_UPDATE)
        if self._places.has_any(optimizer):
            self._note_peaks(optimizer, update)
        for place in places:
            if self._has_hidden_part(optimizer, place.parameter):
                continue
            values, gradient = framework.sample(place.parameter), framework.gradient(update, place.parameter)
            if values is not None and gradient is not None:
                # Nesterov's foreach form writes to gradients
                kept = framework.copied(gradient) if update.scaled is None else None
                self._before.append(_Before(place=place, weight=framework.copied(values), gradient=kept))

    def _note_peaks(self, optimizer: Any, update: Update) -> None:
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

    def _measure(self, before: Sequence[_Before], update: Update) -> None:
        optimizer = self._framework.optimizer(update.optimizer)
        if optimizer is None:
            return
        measured: list[_Measured] = []
        found = [(b, numbers) for b in before if (numbers := self._compare(optimizer, b, update)) is not None]
        for index, (each, numbers) in enumerate(found):
            is_last = index == len(found) - 1
            self._deferred.add(numbers, self._reader(each, optimizer, update.step, measured, is_last=is_last))

    def _compare(self, optimizer: Any, before: _Before, update: Update) -> Array | None:
        parameter, group = before.place.parameter, before.place.group
        framework, xp = self._framework, self._framework.xp
        after = framework.sample(parameter)
        grad = before.gradient if before.gradient is not None else framework.gradient(update, parameter)
        if after is None or grad is None or after.shape != before.weight.shape or grad.shape != after.shape:
            return None
        if self._has_hidden_part(optimizer, parameter):
            return None
        weight, grad = framework.wide(before.weight), framework.wide(grad)
        stayed = framework.wide(after) == weight
        meant = self._intended_of(optimizer, parameter, group, weight, grad)
        spacing = framework.ulp(weight, parameter.dtype)
        if meant is None:
            return _numbers(framework, grad != 0, None, stayed, xp.zeros_like(stayed))
        size = xp.where(xp.isfinite(meant), abs(meant), xp.zeros_like(meant)) / spacing
        # a quarter: below a power of two the numbers lie twice as dense
        disagrees = ((size < 0.25) & ~stayed) | ((size > 1.0) & stayed)
        return _numbers(framework, grad != 0, size, stayed, disagrees)

    def _intended_of(
        self, optimizer: Any, parameter: Any, group: Mapping[str, Any], weight: Array, grad: Array
    ) -> Array | None:
        framework, family = self._framework, self._framework.family_of(optimizer)
        if not family:
            return None
        state = framework.state_of(optimizer, parameter)
        samples: dict[str, Any] = {"step": state["step"]} if "step" in state else {}
        for key in STATES[family]:
            if framework.is_tensor(value := state.get(key)):
                values = framework.sample(value)
                if values is None or values.shape != weight.shape:
                    return None
                samples[key] = framework.wide(values)
        return intended(family, group, weight, grad, samples)

    def _has_hidden_part(self, optimizer: Any, parameter: Any) -> bool:
        """Whether the optimizer keeps more of the weight than the weight itself shows."""
        return any(
            self._framework.is_tensor(value) and value.shape == parameter.shape and key not in _PLAIN_STATE
            for key, value in self._framework.state_of(optimizer, parameter).items()
        )

    def _reader(self, before: _Before, optimizer: Any, step: int, measured: list[_Measured], *, is_last: bool) -> Any:
        parameter, family = before.place.parameter, self._framework.family_of(optimizer)
        name, shape, shares = self.context.label(parameter), tuple(parameter.shape), dict(self._shares)

        dtype = self._framework.name_of(parameter.dtype)

        def read(numbers: Sequence[float]) -> None:
            n, n_lost, n_gradient, n_stayed, n_disagree, size, median = numbers
            is_known = family and median >= 0 and n_disagree <= DISAGREES * size
            measured.append(
                _Measured(
                    name=name, dtype=dtype, shape=shape, family=family if is_known else "",
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


def _numbers(framework: Framework, has_gradient: Array, size: Array | None, stayed: Array, disagrees: Array) -> Array:
    """Counts: to move, of these stayed; with a gradient, of these stayed; against the formula; all. Then the median."""
    xp = framework.xp
    moving = has_gradient if size is None else has_gradient & (size > 0)
    counts = [moving, moving & stayed, has_gradient, has_gradient & stayed, disagrees, xp.ones_like(stayed)]
    return xp.concatenate([framework.wide(xp.stack(counts).sum(-1)), framework.wide(_median(xp, size, moving))])


def _median(xp: Any, size: Array | None, moving: Array) -> Array:
    """Of the elements that are to move, 0 without any; -1 when the update is not known."""
    if size is None:
        return xp.full_like(moving[:1], -1.0, dtype=xp.float32)
    stride = -(-len(size) // MEDIAN_OF)
    chosen, is_moving = size[::stride], moving[::stride]
    if not len(chosen):
        return chosen
    looked = is_moving | ~is_moving.any()  # NumPy warns the program when it finds no number
    sizes = xp.where(is_moving, chosen, xp.zeros_like(chosen))
    middle = xp.nanmedian(xp.where(looked, sizes, xp.full_like(chosen, xp.nan)))
    return xp.nan_to_num(middle, nan=0.0).reshape(1)
