"""Optimizer state that a low format freezes: Adam's step counter, and its second moment."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hypocenter.detect.update_rows import (
    MOMENT_LOST,
    MOMENT_RATIO,
    MOMENTS_WRONG,
    SITE,
    STEP_COUNTER,
    STEP_MOVED,
    STUCK,
)
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.framework import Framework
from hypocenter.session.observers.low_places import LowPlaces, Place
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.tap.weakly import Ref

Array = Any  # see hypocenter.session.framework

PER_UPDATE = 2  # second moments that are measured at one update
WRONG = 4.0  # a second moment off by this factor makes updates half or twice as large
SEEN_OFTEN = 16  # measurements of a second moment before its mean is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    place: Place
    dtype: str
    before: Array


@dataclass(slots=True)
class _Exact:
    """The mean of a second moment as exact arithmetic would have it, from the gradients that were looked at."""

    mean: float
    update: int  # of the optimizer, when it was last brought up to date
    n_seen: int = 0


class FrozenState(Observer[Observed]):
    """Looks at the step counter at each update, at second moments in turn; nothing when all state is float32."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._framework = framework = context.framework
        self._moments = LowPlaces(framework, lambda o, p: framework.is_low(framework.state_of(o, p).get("exp_avg_sq")))
        self._deferred = framework.deferred()
        self._counter: tuple[Any, Any, Array] | None = None  # parameter, counter, its value before
        self._before: list[_Moment] = []
        self._exact: dict[int, tuple[weakref.ref[Any], _Exact]] = {}  # by id of the parameter
        self._n_updates: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def at_rest(self) -> Iterable[str]:
        """Without moments or counters in half precision there is nothing to compare."""
        moments = self._moments
        return ("before_update", "after_update") if moments.are_all_wide and not moments.are_any else ()

    def before_update(self, update: Update) -> None:
        """Copy the counter and the moments whose turn it is."""
        self._deferred.read()
        framework = self._framework
        optimizer = framework.optimizer(update.optimizer)
        self._counter, self._before = None, []
        if optimizer is None:
            return
        places = self._moments.next(optimizer, PER_UPDATE)
        if not self._moments.has_wide_counters(optimizer):
            self._counter = _low_counter(framework, optimizer, update)
        if not places or not framework.family_of(optimizer).startswith("Adam"):
            return
        for place in places:
            moment = framework.state_of(optimizer, place.parameter)["exp_avg_sq"]
            values, dtype = framework.sample(moment), framework.name_of(moment.dtype)
            if values is not None and framework.with_gradients(update, [place.parameter]):
                self._before.append(_Moment(place=place, dtype=dtype, before=framework.copied(values)))

    def after_update(self, update: Update) -> None:
        """Compare."""
        counter, before = self._counter, self._before
        self._counter, self._before = None, []
        optimizer = self._framework.optimizer(update.optimizer)
        if update.skipped or optimizer is None:
            return
        self._n_updates[optimizer] = self._n_updates.get(optimizer, 0) + 1
        if counter is not None:
            self._compare_counter(counter, update.step)
        if before:
            self._measure(optimizer, before, update)

    def _measure(self, optimizer: Any, before: Sequence[_Moment], update: Update) -> None:
        wrong: list[bool] = []
        found = [(m, numbers) for m in before if (numbers := self._compare(optimizer, m, update)) is not None]
        for index, (moment, numbers) in enumerate(found):
            is_last = index == len(found) - 1
            self._read_later(moment, numbers, (update.step, self._n_updates[optimizer]), wrong, is_last=is_last)

    def _compare(self, optimizer: Any, moment: _Moment, update: Update) -> Array | None:
        """Elements that were to change, of these unchanged; mean before, after, and mean of the squared gradient."""
        parameter, group, framework = moment.place.parameter, moment.place.group, self._framework
        held = framework.state_of(optimizer, parameter).get("exp_avg_sq")
        after = framework.sample(held) if framework.is_tensor(held) else None
        grad = framework.gradient(update, parameter)
        if after is None or grad is None or not after.shape == grad.shape == moment.before.shape:
            return None
        decays_apart = framework.family_of(optimizer) == "AdamW"
        if group["weight_decay"] and not group.get("decoupled_weight_decay", decays_apart):
            return None  # the weight is in the gradient that was squared, and it is no longer there
        before, after, square = framework.wide(moment.before), framework.wide(after), framework.wide(grad) ** 2
        is_moving = square != before  # (1 - beta2) * (g^2 - v) is not 0
        counts = framework.wide(framework.xp.stack([is_moving, is_moving & (after == before)]).sum(-1))
        means = framework.xp.stack([before, after, square]).mean(-1)
        return framework.xp.concatenate([counts, means])

    def _compare_counter(self, counter: tuple[Any, Any, Array], step: int) -> None:
        parameter, now, before = counter
        framework = self._framework
        name, dtype = self.context.label(parameter), framework.name_of(now.dtype)

        def read(numbers: Sequence[float]) -> None:
            order = self.context.clock.next_order
            self.rows.append(number_row(name, STEP_COUNTER, step, order(), numbers[0], dtype=dtype))
            self.rows.append(number_row(name, STEP_MOVED, step, order(), numbers[0] - numbers[1], dtype=dtype))

        both = framework.xp.stack([framework.wide(framework.sample(now)), framework.wide(before)])
        self._deferred.add(both.reshape(-1), read)

    def _read_later(
        self, moment: _Moment, numbers: Array, when: tuple[int, int], wrong: list[bool], *, is_last: bool
    ) -> None:
        parameter, beta2 = moment.place.parameter, float(moment.place.group["betas"][1])
        name, dtype, (step, n_updates) = self.context.label(parameter), moment.dtype, when

        def read(host: Sequence[float]) -> None:
            n, n_lost, mean_before, mean, mean_square = host
            known, exact = self._exact.get(id(parameter), (None, None))
            if exact is None or known is None or known() is not parameter:
                exact = _Exact(mean_before, n_updates - 1)
                self._exact[id(parameter)] = Ref(parameter), exact
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


def _low_counter(framework: Framework, optimizer: Any, update: Update) -> tuple[Any, Any, Array] | None:
    """The first parameter with a gradient, its counter, and the counter's value now; None when it is not low."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter in (p for p in parameters if framework.with_gradients(update, [p])):
        counter = framework.state_of(optimizer, parameter).get("step")
        values = framework.sample(counter) if framework.is_low(counter) else None
        return None if values is None or len(values) != 1 else (parameter, counter, framework.copied(values))
    return None
