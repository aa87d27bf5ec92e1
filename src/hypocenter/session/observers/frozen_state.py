"""Optimizer state that a low format freezes: Adam's step counter, and its second moment."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from hypocenter.detect.update_rows import (
    MOMENT_LOST,
    MOMENT_RATIO,
    MOMENTS_WRONG,
    SITE,
    STEP_COUNTER,
    STEP_MOVED,
    STUCK,
)
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.grid import is_low, name_of, wide_dtype
from hypocenter.session.observers.intended import family_of
from hypocenter.session.observers.low_places import LowPlaces, Place, state_of, torch_optimizer
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import Deferred, sample

PER_UPDATE = 2  # second moments that are measured at one update
WRONG = 4.0  # a second moment off by this factor makes updates half or twice as large
SEEN_OFTEN = 16  # measurements of a second moment before its mean is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    place: Place
    before: Tensor


@dataclass(slots=True)
class _Exact:
    """The mean of a second moment as exact arithmetic would have it, from the gradients that were looked at."""

    mean: float
    update: int  # of the optimizer, when it was last brought up to date
    n_seen: int = 0


class FrozenState(Observer):
    """Looks at the step counter at each update, at second moments in turn; nothing when all state is float32."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._moments = LowPlaces(lambda o, parameter: is_low(state_of(o, parameter).get("exp_avg_sq")))
        self._deferred = Deferred()
        self._counter: tuple[Tensor, Tensor, Tensor] | None = None  # parameter, counter, its value before
        self._before: list[_Moment] = []
        self._exact: Any = WeakIdKeyDictionary()  # parameter -> _Exact; by identity, for tensors compare by value
        self._n_updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()

    def before_update(self, update: Update) -> None:
        """Copy the counter and the moments whose turn it is."""
        self._deferred.read()
        optimizer = torch_optimizer(update.optimizer)
        self._counter, self._before = None, []
        if optimizer is None:
            return
        self._counter = _low_counter(optimizer)
        if not family_of(optimizer).startswith("Adam"):
            return
        for place in self._moments.next(optimizer, PER_UPDATE):
            values = sample(state_of(optimizer, place.parameter)["exp_avg_sq"])
            if values is not None and place.parameter.grad is not None:
                self._before.append(_Moment(place=place, before=values.clone()))

    def after_update(self, update: Update) -> None:
        """Compare."""
        counter, before = self._counter, self._before
        self._counter, self._before = None, []
        optimizer = torch_optimizer(update.optimizer)
        if update.skipped or optimizer is None:
            return
        self._n_updates[optimizer] = self._n_updates.get(optimizer, 0) + 1
        if counter is not None:
            self._compare_counter(counter, update.step)
        if before:
            self._measure(optimizer, before, update)

    @torch.no_grad()
    def _measure(self, optimizer: torch.optim.Optimizer, before: Sequence[_Moment], update: Update) -> None:
        wrong: list[bool] = []
        found = [(m, numbers) for m in before if (numbers := _compare(optimizer, m)) is not None]
        for index, (moment, numbers) in enumerate(found):
            is_last = index == len(found) - 1
            self._read_later(moment, numbers, (update.step, self._n_updates[optimizer]), wrong, is_last=is_last)

    def _compare_counter(self, counter: tuple[Tensor, Tensor, Tensor], step: int) -> None:
        parameter, now, before = counter
        name, dtype = self.context.label(parameter), name_of(now.dtype)

        def read(numbers: Sequence[float]) -> None:
            order = self.context.clock.next_order
            self.rows.append(number_row(name, STEP_COUNTER, step, order(), numbers[0], dtype=dtype))
            self.rows.append(number_row(name, STEP_MOVED, step, order(), numbers[0] - numbers[1], dtype=dtype))

        self._deferred.add(torch.stack([now.detach().float(), before.float()]).reshape(-1), read)

    def _read_later(
        self, moment: _Moment, numbers: Tensor, when: tuple[int, int], wrong: list[bool], *, is_last: bool
    ) -> None:
        parameter, beta2 = moment.place.parameter, float(moment.place.group["betas"][1])
        name, dtype, (step, n_updates) = self.context.label(parameter), name_of(moment.before.dtype), when

        def read(host: Sequence[float]) -> None:
            n, n_lost, mean_before, mean, mean_square = host
            if parameter not in self._exact:
                self._exact[parameter] = _Exact(mean_before, n_updates - 1)
            exact: _Exact = self._exact[parameter]
            kept = beta2 ** (n_updates - exact.update)
            exact.mean, exact.update = kept * exact.mean + (1 - kept) * mean_square, n_updates
            exact.n_seen += 1
            ratio = mean / exact.mean if exact.mean > 0 else 1.0
            order = self.context.clock.next_order
            counts = round(n), round(n_lost)
            self.rows.append(count_row(name, MOMENT_LOST, step, order(), counts, dtype=dtype))
            self.rows.append(number_row(name, MOMENT_RATIO, step, order(), ratio, dtype=dtype))
            is_off = not 1 / WRONG <= ratio <= WRONG and exact.n_seen >= SEEN_OFTEN
            wrong.append(is_off and n > 0 and n_lost >= STUCK * n)
            if is_last:
                self.rows.append(
                    count_row(SITE, MOMENTS_WRONG, step, order(), (len(wrong), sum(wrong)), dtype=dtype)
                )  # fmt: skip

        self._deferred.add(numbers, read)


def _low_counter(optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor, Tensor] | None:
    """The first parameter with a gradient, its counter, and the counter's value now; None when it is not low."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                counter = state_of(optimizer, parameter).get("step")
                if isinstance(counter, Tensor) and is_low(counter) and counter.numel() == 1:
                    return parameter, counter, counter.detach().clone()
                return None
    return None


def _compare(optimizer: torch.optim.Optimizer, moment: _Moment) -> Tensor | None:
    """Elements that were to change, of these unchanged; mean before, after, and mean of the squared gradient."""
    parameter, group = moment.place.parameter, moment.place.group
    after = _sampled(state_of(optimizer, parameter), "exp_avg_sq")
    grad = sample(parameter.grad) if parameter.grad is not None else None
    if after is None or grad is None or not after.shape == grad.shape == moment.before.shape:
        return None
    if group["weight_decay"] and not group.get("decoupled_weight_decay", family_of(optimizer) == "AdamW"):
        return None  # the weight is in the gradient that was squared, and it is no longer there
    wide = wide_dtype(parameter.device)
    before, after, square = moment.before.to(wide), after.to(wide), grad.to(wide).square()
    is_moving = square != before  # (1 - beta2) * (g^2 - v) is not 0
    n, n_lost = is_moving.sum().to(wide), (is_moving & (after == before)).sum().to(wide)
    return torch.stack([n, n_lost, before.mean(), after.mean(), square.mean()])


def _sampled(state: Mapping[str, Any], key: str) -> Tensor | None:
    value = state.get(key)
    return sample(value) if isinstance(value, Tensor) else None
