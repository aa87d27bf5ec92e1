"""The law "update": what a step leaves is what the optimizer's rule makes of what was there. For HC235.

At audited steps some elements of every parameter, of its gradient and of its state are kept as the rule gets them.
After the step the rule is done again in float64 (hypocenter.optimizers), and the weights and the state that are there
now must be what it gives.

How far they may be off is not chosen. A running error analysis adds up what each operation of the rule rounds, in the
format that it is computed in (hypocenter.optimizers.rounded); ALLOWED such errors obey, BROKEN do not, and what lies
between says nothing. Two things come on top. Numbers below the smallest normal one of a format count as 0, for a
device may flush them. And the betas are raised to a power outside of the rule's own operations, in float32 where an
optimizer counts its steps on a device (`capturable`): see `_of_powers`.

Of an optimizer that is not torch's own, or whose rule is not known, the first steps tell what class of rule it follows
(hypocenter.optimizers.fitted); what leaves that, while most of its group keep it, is told.

Nothing is said of gradients that are sparse or in another format than the weight, and of parameters that had no
gradient. A parameter counts when it obeyed at STAYS audited steps before.

How an optimizer is read is for each framework to say: hypocenter.session.torch_by_rule, session.mindspore.by_rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hypocenter.detect.law_rows import BALANCED, NOT_BY_RULE, SITE, UPDATE
from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading, Source, replace
from hypocenter.optimizers.fitted import FAR, Fits, Look, Moved
from hypocenter.optimizers.fitted import NEAR as FITS
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.predicted import COMPUTED_IN, Inputs, in_units, predict
from hypocenter.optimizers.rounded import ALLOWED, Array
from hypocenter.session.events import ContextT, Observer
from hypocenter.session.observers.optimizer_rows import count_row, number_row

ELEMENTS = 1 << 14  # in all, at one step
FEWEST, MOST = 8, 1024  # of a parameter
STAYS = 2  # audited steps at which it obeyed, before one at which it does not
BROKEN = 4 * ALLOWED  # rounding errors
NEAR = 0.01  # relative: what is no multiple of the rule's change
VALUE, STEP = "value", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Parameters that an optimizer updates with the same options.

    Attributes:
        number: its place in the optimizer.
        options: of the rule that is known; None: it is not known.
        mixes: numbers of the group that may be betas.
        powers_in: the format in which betas are raised to the power of the step.
        scale: what gradients still have to be divided by.
    """

    number: int
    options: Options | None
    mixes: Sequence[float]
    eps: float
    powers_in: str = "float64"
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Samples of a parameter and of all that belongs to it.

    Attributes:
        values: by VALUE, "grad", STEP and the names of its state: arrays, or numbers.
        forms: the formats of those that are arrays.
    """

    values: Mapping[str, Any]
    forms: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """A parameter as the rule gets it. `size` and `start`: how it was sampled."""

    parameter: Any
    group: Group
    held: Held
    size: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Both sides of one parameter's update, on the host."""

    before: _Before
    was: Mapping[str, Array]
    now: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Off:
    """How far a parameter is from what the rule makes.

    Attributes:
        units: by "value" or name of state, in rounding errors.
        factor: what was added to the weight over what the rule adds; NaN: it is no multiple.
    """

    units: Mapping[str, float]
    factor: float

    @property
    def worst(self) -> float:
        return max(self.units.values())


class ByRule(Observer[ContextT]):
    """Writes a row for each audited step, and one for each parameter that is not what the rule makes."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._audits = context.audits
        self._optimizer: Any = None
        self._before: Sequence[_Before] = ()
        self._step = self._n_looked = 0
        self._n_obeyed: dict[int, int] = {}  # by id of a parameter: audited steps in a row
        self._fits: dict[tuple[int, ...], Fits] = {}  # by id of an optimizer and number of its group, and state

    # what a framework says

    def groups(self, optimizer: Any) -> Iterable[tuple[Group, Sequence[Any]]]:
        """Its groups, each with the parameters that have a dense gradient."""
        raise NotImplementedError

    def held(self, optimizer: Any, parameter: Any, size: int, start: int) -> Held | None:
        """A parameter and its state as they are now, not copied; None where a part of it cannot be had.

        Args:
            size: at most so many elements of each.
            start: another one takes other elements, where the framework can.
        """
        raise NotImplementedError

    def on_host(self, values: Sequence[Any]) -> list[Array]:
        """Arrays and numbers in float64."""
        raise NotImplementedError

    def changed_in_step(self, optimizer: Any, before: Group) -> Group | None:
        """The group as it is after the step, where hooks may have changed gradients and options; None: they cannot."""
        return None

    def hook(self, optimizer: Any) -> Source | None:
        """What of the program runs around its step."""
        return None

    # what is done with it

    def take(self, optimizer: Any, step: int) -> None:
        """Gradients are final: keep what the rule gets, at an audited step."""
        self._optimizer, self._before = None, ()
        if not self._audits.is_due(step):
            return
        with self._audits.spending(calls_program=False):
            self._n_looked += 1
            taken = list(self._taken(optimizer))
            values = [each for before in taken for each in before.held.values.values()]
            flat = iter(self.context.framework.copies(values))
            self._before = [
                replace(before, held=replace(before.held, values=dict(zip(before.held.values, flat, strict=False))))
                for before in taken
            ]
        self._optimizer, self._step = optimizer, step

    def compare(self, optimizer: Any) -> None:
        """It has been applied: weights, gradients and state are there."""
        before, self._before = self._before, ()
        if self._optimizer is optimizer and before:
            with self._audits.spending(calls_program=False), np.errstate(all="ignore"):
                cases = self._cases(optimizer, before)
                known = [case for case in cases if case.before.group.options is not None]
                n, n_obeyed = self._judge(optimizer, known) if known else (0, 0)
                others = [case for case in cases if case.before.group.options is None]
                n_fit, n_fitted = self._judge_by_fit(optimizer, others)
                row = count_row(
                    SITE, BALANCED, self._step, self.context.clock.next_order(), (n + n_fit, n_obeyed + n_fitted),
                    module=UPDATE,
                )  # fmt: skip
                self.rows.append(row)
        self._optimizer = None

    def _taken(self, optimizer: Any) -> Iterator[_Before]:
        groups = list(self.groups(optimizer))
        n_parameters = sum(len(parameters) for _, parameters in groups)
        size = min(MOST, max(FEWEST, ELEMENTS // max(1, n_parameters)))
        for group, parameters in groups:
            for parameter in parameters:
                held = self.held(optimizer, parameter, size, self._n_looked)
                if held is not None and "grad" in held.values and held.forms[VALUE] in COMPUTED_IN:
                    yield _Before(parameter=parameter, group=group, held=held, size=size, start=self._n_looked)

    def _cases(self, optimizer: Any, before: Sequence[_Before]) -> list[_Case]:
        pairs = [(each, self.held(optimizer, each.parameter, each.size, each.start)) for each in before]
        both = [
            (each, now.values) for each, now in pairs if now is not None and _are_alike(each.held.values, now.values)
        ]
        values = [v for each, now in both for held in (each.held.values, now) for v in held.values()]
        flat = iter(self.on_host(values))
        return [
            _Case(
                before=each, was={name: next(flat) for name in each.held.values},
                now={name: next(flat) for name in now},
            )
            for each, now in both
        ]  # fmt: skip

    def _judge(self, optimizer: Any, cases: Sequence[_Case]) -> tuple[int, int]:
        """Cases of which the rule is known: how many were looked at, and how many obey."""
        found = _compared(cases)
        again = [i for i, off in enumerate(found) if off is not None and off.worst > ALLOWED]
        late = [(i, case) for i in again if (case := self._as_changed(optimizer, cases[i])) is not None]
        for (i, _), other in zip(late, _compared([case for _, case in late]), strict=True):
            if other is not None and other.worst < cast("_Off", found[i]).worst:
                found[i] = other
        n_obeyed = n = 0
        for case, off in zip(cases, found, strict=True):
            if off is not None:
                n, n_obeyed = n + 1, n_obeyed + self._obeys(case.before.parameter, off, optimizer)
        return n, n_obeyed

    def _as_changed(self, optimizer: Any, case: _Case) -> _Case | None:
        """With the gradient and the options that a hook of the optimizer may have left."""
        group = self.changed_in_step(optimizer, case.before.group)
        if group is None:
            return None
        was = {**case.was, "grad": case.now.get("grad", np.empty(0))}
        return replace(case, before=replace(case.before, group=group), was=was)

    def _judge_by_fit(self, optimizer: Any, cases: Sequence[_Case]) -> tuple[int, int]:
        """Cases of a rule that its steps alone tell: how many were looked at, and how many obey."""
        groups: dict[tuple[int, ...], list[_Case]] = {}
        for case in cases:
            if case.was.get("grad", np.empty(0)).shape == case.was[VALUE].shape and case.was[VALUE].size:
                state = hash(tuple(sorted(_arrays(case.now, case))))
                groups.setdefault((id(optimizer), case.before.group.number, state), []).append(case)
        n = n_obeyed = 0
        for key, together in groups.items():
            moved = [_moved(case) for case in together]
            if not all(np.isfinite(each.after).all() and np.isfinite(each.gradient).all() for each in moved):
                continue
            group = together[0].before.group
            looks = self._fits.setdefault(key, Fits()).look(moved, group.mixes, group.eps)
            for place, case in enumerate(together):
                known = {name: look for name, look in looks.items() if not math.isnan(look.apart[place])}
                if known:
                    n += 1
                    n_obeyed += self._keeps(case.before.parameter, known, place, optimizer)
        return n, n_obeyed

    def _keeps(self, parameter: Any, looks: Mapping[str, Look], place: int, optimizer: Any) -> bool:
        """Note whether it goes on by the rule of its first steps; where it does not, and did, write a row."""
        n_before = self._n_obeyed.get(id(parameter), 0)
        apart = {name: look.apart[place] for name, look in looks.items()}
        if max(apart.values()) <= FITS:
            self._n_obeyed[id(parameter)] = n_before + 1
            return True
        if max(apart.values()) > FAR:
            self._n_obeyed[id(parameter)] = -(1 << 30)  # from here on it is known
            if n_before >= STAYS:
                off = [name for name, part in apart.items() if part > FAR]
                name = next((each for each in off if each != VALUE), VALUE)
                units = dict.fromkeys(off, BROKEN + 1.0)
                row = self._row(parameter, _Off(units=units, factor=looks[name].factor[place]), optimizer, n_before)
                self.rows.append(replace(row, module=name, names=(str(looks[name].form),)))
        return False

    def _obeys(self, parameter: Any, off: _Off, optimizer: Any) -> bool:
        """Note whether it does; where that is new, write a row."""
        n_before = self._n_obeyed.get(id(parameter), 0)
        if off.worst <= ALLOWED:
            self._n_obeyed[id(parameter)] = n_before + 1
            return True
        if off.worst > BROKEN:
            self._n_obeyed[id(parameter)] = -(1 << 30)  # from here on it is known
            if n_before >= STAYS:
                self.rows.append(self._row(parameter, off, optimizer, n_before))
        return False

    def _row(self, parameter: Any, off: _Off, optimizer: Any, n_before: int) -> Reading:
        state = {name: units for name, units in off.units.items() if name != VALUE and units > BROKEN}
        worst = max(state, key=lambda name: state[name]) if state else VALUE
        row = number_row(
            self.context.label(parameter), NOT_BY_RULE, self._step, self.context.clock.next_order(), off.factor,
            dtype=self.context.framework.name_of(parameter.dtype), module=worst, call=n_before,
        )  # fmt: skip
        return replace(row, op=type(optimizer).__name__, source=self.hook(optimizer), shape=tuple(parameter.shape))


def _arrays(held: Mapping[str, Array], case: _Case) -> list[str]:
    """Names of state that has an element for each of the weight."""
    return [name for name in held if name not in (VALUE, "grad", STEP) and held[name].shape == case.was[VALUE].shape]


def _moved(case: _Case) -> Moved:
    eps = [FORMATS[form].eps for form in case.before.held.forms.values()]
    return Moved(
        value=case.was[VALUE], gradient=case.was["grad"], after=case.now[VALUE],
        state={name: case.was[name] for name in _arrays(case.was, case)},
        new={name: case.now[name] for name in _arrays(case.now, case)}, eps=max(eps),
    )  # fmt: skip


def mixes(group: Mapping[str, Any]) -> list[float]:
    """Numbers of a group between 0 and 1 that are no learning rate, decay or eps: betas, by whatever name."""
    flat = [each for value in group.values() for each in (value if isinstance(value, (tuple, list)) else (value,))]
    return sorted({each for each in flat if isinstance(each, float) and 0.5 <= each < 1.0})


def _are_alike(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether what was there still is, in the same size."""
    return all(
        name == "grad" or (name in now and getattr(now[name], "shape", ()) == getattr(before[name], "shape", ()))
        for name in before
    )


def _compared(cases: Sequence[_Case]) -> list[_Off | None]:
    """Each case with what its rule makes, all of one kind together; None where it cannot be told."""
    kinds: dict[Any, list[int]] = {}
    for i, case in enumerate(cases):
        group, form = case.before.group, case.before.held.forms[VALUE]
        if group.options is None:
            continue
        if case.was.get("grad", np.empty(0)).shape == case.was[VALUE].shape and case.was[VALUE].size:
            key = group.options, group.scale, group.powers_in, form, _state_format(case), *case.was, *case.now
            kinds.setdefault(key, []).append(i)
    found: list[_Off | None] = [None] * len(cases)
    for where in kinds.values():
        for i, off in zip(where, _compared_together([cases[i] for i in where]), strict=True):
            found[i] = off
    return found


def _state_format(case: _Case) -> str:
    """The coarsest that the rule computes in: that of the weight, or of its state."""
    names = [form for name, form in case.before.held.forms.items() if name != STEP and form in COMPUTED_IN]
    return max(names, key=lambda name: COMPUTED_IN[name].eps)


def _compared_together(cases: Sequence[_Case]) -> Iterator[_Off | None]:
    """Of cases with the same options, formats and state."""
    group, dtype, state_dtype = cases[0].before.group, cases[0].before.held.forms[VALUE], _state_format(cases[0])
    options = cast("Options", group.options)
    sizes = [case.was[VALUE].size for case in cases]
    was = {name: np.concatenate([case.was[name] for case in cases]) for name in cases[0].was if name != STEP}
    now = {name: np.concatenate([case.now[name] for case in cases]) for name in cases[0].now if name != STEP}
    n_steps = np.repeat([float(case.was[STEP][0]) if STEP in case.was else 0.0 for case in cases], sizes)
    value, gradient = was.pop(VALUE), was.pop("grad") / group.scale
    inputs = Inputs(
        value=value, gradient=gradient, n_steps=cast("float", n_steps), state=was, dtype=dtype, state_dtype=state_dtype
    )
    predicted = predict(options, inputs)
    meant, done = predicted.after.exact - value, now[VALUE] - value
    decay = options.lr * options.weight_decay * value if options.decoupled else 0.0
    unit = predicted.after.unit + np.abs(meant + decay) * _of_powers(options, group.powers_in, n_steps + 1)
    units = {VALUE: _units(now[VALUE] - predicted.after.exact, unit, dtype)}
    for name, made in predicted.state.items():
        if name in now:
            units[name] = _units(now[name] - made.exact, made.unit, state_dtype)
    starts = np.cumsum([0, *sizes[:-1]])
    most = {name: np.maximum.reduceat(values, starts).tolist() for name, values in units.items()}
    is_finite = np.logical_and.reduce([np.isfinite(v) for v in (*now.values(), meant) if v.shape == meant.shape])
    known = np.logical_and.reduceat(is_finite, starts)
    for i, (case, start, size) in enumerate(zip(cases, starts, sizes, strict=True)):
        worst = {name: values[i] for name, values in most.items()}
        if STEP in case.was and STEP in case.now and case.now[STEP][0] != case.was[STEP][0] + 1:
            worst[STEP] = math.inf
        here = slice(start, start + size)
        factor = _factor(meant[here], done[here]) if max(worst.values()) > ALLOWED else 1.0
        yield _Off(units=worst, factor=factor) if known[i] else None


def _units(apart: Array, unit: Array, dtype: str) -> Array:
    """In rounding errors; 0 below the smallest normal number, NaN where one side is not finite."""
    apart = np.abs(apart)
    return np.where(apart <= FORMATS[dtype].smallest_normal, 0.0, in_units(apart, unit))


def _of_powers(options: Any, powers_in: str, n_steps: Array) -> Array | float:
    """How far off, relative, one rounding error of a beta puts the change that is corrected for the bias.

    1 - beta^t is then off by (t + 1) * eps * beta^t: the error of beta, t times, and that of the power. Two roundings
    follow: of the difference, and of its root or of the rate over it. All is computed in float64, or, where steps are
    counted on a device, in float32.
    """
    if not getattr(options, "bias_correction", False):
        return 0.0
    eps = FORMATS[powers_in].eps
    powers = [beta**n_steps for beta in (options.beta1, options.beta2)]
    return eps * sum(2 + (n_steps + 1) * power / (1 - power) for power in powers)


def _factor(meant: Array, done: Array) -> float:
    """How many times the change that was meant was done; NaN where it is no multiple of it."""
    size = float(meant @ meant)
    factor = float(done @ meant) / size if size > 0 and math.isfinite(size) else math.nan
    rest = float(np.linalg.norm(done - factor * meant))
    return factor if rest <= NEAR * max(float(np.linalg.norm(done)), math.sqrt(size)) else math.nan
