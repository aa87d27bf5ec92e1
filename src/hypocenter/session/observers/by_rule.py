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
gradient. Gradients and options that hooks of the optimizer change inside the step are those that count. A parameter
counts when it obeyed at STAYS audited steps before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.optim.optimizer as hooks_of_all
from torch import Tensor
from torch.optim import Optimizer

from hypocenter.detect.law_rows import BALANCED, NOT_BY_RULE, SITE, UPDATE
from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading, Source, replace
from hypocenter.optimizers.fitted import FAR, Fits, Look, Moved
from hypocenter.optimizers.fitted import NEAR as FITS
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.predicted import COMPUTED_IN, Inputs, in_units, predict
from hypocenter.optimizers.rounded import ALLOWED, Array
from hypocenter.optimizers.rule import rule_of
from hypocenter.session.learning_rate import number_of
from hypocenter.session.observer import Context, Observer
from hypocenter.session.observers.grid import name_of
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import by_kind, copies, sample
from hypocenter.tap.source import source_of

ELEMENTS = 1 << 14  # in all, at one step
FEWEST, MOST = 8, 1024  # of a parameter
STAYS = 2  # audited steps at which it obeyed, before one at which it does not
BROKEN = 4 * ALLOWED  # rounding errors
NEAR = 0.01  # relative: what is no multiple of the rule's change
VALUE, STEP = "value", "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Before:
    """A parameter as the rule gets it.

    Attributes:
        tensors: "value", "grad", "step" and the names of its state: samples of them.
        size, start: how they were sampled.
    """

    parameter: Tensor
    group: Mapping[str, Any]
    options: Options | None  # None: its rule is not known
    tensors: Mapping[str, Any]
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


class ByRule(Observer):
    """Writes a row for each audited step, and one for each parameter that is not what the rule makes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._audits = context.audits
        self._optimizer: Optimizer | None = None
        self._before: Sequence[_Before] = ()
        self._step = self._n_looked = 0
        self._n_obeyed: dict[int, int] = {}  # by id of a parameter: audited steps in a row
        self._fits: dict[tuple[int, ...], Fits] = {}  # by id of an optimizer and number of its group, and state

    def before_rule(self, optimizer: Optimizer, step: int) -> None:
        """Gradients are final."""
        self._optimizer, self._before = None, ()
        if not self._audits.is_due(step):
            return
        with self._audits.spending(calls_program=False):
            self._n_looked += 1
            taken = list(self._taken(optimizer))
            flat = iter(copies([each for before in taken for each in before.tensors.values()]))
            self._before = [replace(before, tensors=dict(zip(before.tensors, flat, strict=False))) for before in taken]
        self._optimizer, self._step = optimizer, step

    def after_rule(self, optimizer: Optimizer) -> None:
        """It has been applied: weights, gradients and state are there."""
        before, self._before = self._before, ()
        if self._optimizer is optimizer and before and not _has_skipped(optimizer):
            with self._audits.spending(calls_program=False), np.errstate(all="ignore"):
                cases = self._cases(optimizer, before)
                known = [case for case in cases if case.before.options is not None]
                n, n_obeyed = self._judge(optimizer, known) if known else (0, 0)
                n_fit, n_fitted = self._judge_by_fit(optimizer, [case for case in cases if case.before.options is None])
                row = count_row(
                    SITE, BALANCED, self._step, self.context.clock.next_order(), (n + n_fit, n_obeyed + n_fitted),
                    module=UPDATE,
                )  # fmt: skip
                self.rows.append(row)
        self._optimizer = None

    def _taken(self, optimizer: Optimizer) -> Iterator[_Before]:
        kind, groups = type(optimizer).__name__, optimizer.param_groups
        n_parameters = sum(len(group["params"]) for group in groups)
        size = min(MOST, max(FEWEST, ELEMENTS // max(1, n_parameters)))
        for group in groups:
            options = _options(kind, group) if type(optimizer).__module__.startswith("torch.optim.") else None
            for parameter in group["params"]:
                if not _is_dense(parameter, parameter.grad):
                    continue
                tensors = _tensors(optimizer, parameter, size, self._n_looked)
                if tensors is not None and "grad" in tensors:
                    yield _Before(
                        parameter=parameter, group=group, options=options, tensors=tensors, size=size,
                        start=self._n_looked,
                    )  # fmt: skip

    def _cases(self, optimizer: Optimizer, before: Sequence[_Before]) -> list[_Case]:
        pairs = [(each, _tensors(optimizer, each.parameter, each.size, each.start)) for each in before]
        both = [(each, now) for each, now in pairs if now is not None and _are_alike(each.tensors, now)]
        flat = iter(_on_host([value for each, now in both for held in (each.tensors, now) for value in held.values()]))
        return [
            _Case(before=each, was={name: next(flat) for name in each.tensors}, now={name: next(flat) for name in now})
            for each, now in both
        ]

    def _judge(self, optimizer: Optimizer, cases: Sequence[_Case]) -> tuple[int, int]:
        """Cases of which the rule is known: how many were looked at, and how many obey."""
        scale = getattr(optimizer, "grad_scale", None)  # of fused optimizers, which take it out themselves
        told = [cast("Options", each.before.options) for each in cases]
        found = _compared(cases, told, float(scale) if scale is not None else 1.0)
        again = [i for i, off in enumerate(found) if off is not None and off.worst > ALLOWED]
        kind = type(optimizer).__name__
        if again:  # a hook of the optimizer may have changed gradients or options
            late = [
                replace(cases[i], was={**cases[i].was, "grad": cases[i].now.get("grad", np.empty(0))}) for i in again
            ]
            options = [_options(kind, cases[i].before.group) or told[i] for i in again]
            for i, other in zip(again, _compared(late, options, 1.0), strict=True):
                if other is not None and other.worst < cast("_Off", found[i]).worst:
                    found[i] = other
        n_obeyed = n = 0
        for case, off in zip(cases, found, strict=True):
            if off is not None:
                n, n_obeyed = n + 1, n_obeyed + self._obeys(case.before.parameter, off, optimizer)
        return n, n_obeyed

    def _judge_by_fit(self, optimizer: Optimizer, cases: Sequence[_Case]) -> tuple[int, int]:
        """Cases of a rule that its steps alone tell: how many were looked at, and how many obey."""
        groups: dict[tuple[int, ...], list[_Case]] = {}
        numbers = {id(group): i for i, group in enumerate(optimizer.param_groups)}
        for case in cases:
            if case.was.get("grad", np.empty(0)).shape == case.was[VALUE].shape and case.was[VALUE].size:
                state = hash(tuple(sorted(_arrays(case.now, case))))
                groups.setdefault((id(optimizer), numbers.get(id(case.before.group), 0), state), []).append(case)
        n = n_obeyed = 0
        for key, together in groups.items():
            moved = [_moved(case) for case in together]
            if not all(np.isfinite(each.after).all() and np.isfinite(each.gradient).all() for each in moved):
                continue
            group = together[0].before.group
            looks = self._fits.setdefault(key, Fits()).look(moved, _mixes(group), number_of(group.get("eps")) or 0.0)
            for place, case in enumerate(together):
                known = {name: look for name, look in looks.items() if not math.isnan(look.apart[place])}
                if known:
                    n += 1
                    n_obeyed += self._keeps(case.before.parameter, known, place, optimizer)
        return n, n_obeyed

    def _keeps(self, parameter: Tensor, looks: Mapping[str, Look], place: int, optimizer: Optimizer) -> bool:
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

    def _obeys(self, parameter: Tensor, off: _Off, optimizer: Optimizer) -> bool:
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

    def _row(self, parameter: Tensor, off: _Off, optimizer: Optimizer, n_before: int) -> Reading:
        state = {name: units for name, units in off.units.items() if name != VALUE and units > BROKEN}
        worst = max(state, key=lambda name: state[name]) if state else VALUE
        row = number_row(
            self.context.label(parameter), NOT_BY_RULE, self._step, self.context.clock.next_order(), off.factor,
            dtype=name_of(parameter.dtype), module=worst, call=n_before,
        )  # fmt: skip
        return replace(row, op=type(optimizer).__name__, source=_hook(optimizer), shape=tuple(parameter.shape))


def _options(kind: str, group: Mapping[str, Any]) -> Options | None:
    rule = rule_of((kind,), group)
    return None if rule is None or kind not in rule.classes else rule.read(group, (kind,), number_of)


def _arrays(held: Mapping[str, Array], case: _Case) -> list[str]:
    """Names of state that has an element for each of the weight."""
    return [name for name in held if name not in (VALUE, "grad", STEP) and held[name].shape == case.was[VALUE].shape]


def _moved(case: _Case) -> Moved:
    eps = [FORMATS[name_of(each.dtype)].eps for each in case.before.tensors.values() if isinstance(each, Tensor)]
    return Moved(
        value=case.was[VALUE], gradient=case.was["grad"], after=case.now[VALUE],
        state={name: case.was[name] for name in _arrays(case.was, case)},
        new={name: case.now[name] for name in _arrays(case.now, case)}, eps=max(eps),
    )  # fmt: skip


def _mixes(group: Mapping[str, Any]) -> list[float]:
    """Numbers of a group between 0 and 1 that are no learning rate, decay or eps: betas, by whatever name."""
    flat = [each for value in group.values() for each in (value if isinstance(value, (tuple, list)) else (value,))]
    return sorted({each for each in flat if isinstance(each, float) and 0.5 <= each < 1.0})


def _is_dense(parameter: Tensor, gradient: Tensor | None) -> bool:
    return (
        gradient is not None
        and gradient.layout is torch.strided
        and gradient.dtype == parameter.dtype
        and name_of(parameter.dtype) in COMPUTED_IN
    )


def _tensors(optimizer: Optimizer, parameter: Tensor, size: int, start: int) -> dict[str, Any] | None:
    """Samples of a parameter and of all that belongs to it, not copied; None where one cannot be had."""
    found: dict[str, Any] = {VALUE: sample(parameter, size, start)}
    if parameter.grad is not None and parameter.grad.layout is torch.strided:
        found["grad"] = sample(parameter.grad, size, start)
    state: Any = optimizer.state.get(parameter)
    for name, value in (state or {}).items():
        if name == STEP and isinstance(value, Tensor) and value.numel() == 1:
            found[STEP] = (value.detach() if value.requires_grad else value).reshape(1)
        elif isinstance(value, Tensor) and value.shape == parameter.shape:
            found[str(name)] = sample(value, size, start)
        elif isinstance(value, (int, float)):
            found[str(name)] = float(value)
    return found if all(value is not None for value in found.values()) else None


def _are_alike(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether what was there still is, in the same size."""
    return all(
        name == "grad" or (name in now and getattr(now[name], "shape", ()) == getattr(before[name], "shape", ()))
        for name in before
    )


def _on_host(values: Sequence[Tensor | float]) -> list[Array]:
    """In float64; one transfer for each format on each device."""
    found = [np.full(1, each) if isinstance(each, float) else np.empty(0) for each in values]
    for where, parts in by_kind(values).values():
        host, end = torch.cat(parts).detach().cpu().double().numpy(), 0
        for i, part in zip(where, parts, strict=True):
            start, end = end, end + part.numel()
            found[i] = host[start:end]
    return found


def _compared(cases: Sequence[_Case], options: Sequence[Options], scale: float) -> list[_Off | None]:
    """Each case with what its rule makes, all of one kind together; None where it cannot be told."""
    kinds: dict[Any, list[int]] = {}
    for i, (case, told) in enumerate(zip(cases, options, strict=True)):
        if case.was.get("grad", np.empty(0)).shape == case.was[VALUE].shape and case.was[VALUE].size:
            kinds.setdefault((told, case.before.parameter.dtype, _state_format(case), *case.was, *case.now), []).append(
                i
            )
    found: list[_Off | None] = [None] * len(cases)
    for (told, _, state_dtype, *_), where in kinds.items():
        for i, off in zip(where, _compared_together([cases[i] for i in where], told, state_dtype, scale), strict=True):
            found[i] = off
    return found


def _state_format(case: _Case) -> str:
    """The coarsest that the rule computes in: that of the weight, or of its state."""
    held = [each for name, each in case.before.tensors.items() if isinstance(each, Tensor) and name != STEP]
    names = [name_of(each.dtype) for each in held]
    return max((name for name in names if name in COMPUTED_IN), key=lambda name: COMPUTED_IN[name].eps)


def _compared_together(
    cases: Sequence[_Case], options: Options, state_dtype: str, scale: float
) -> Iterator[_Off | None]:
    """Of cases with the same options, formats and state."""
    sizes = [case.was[VALUE].size for case in cases]
    was = {name: np.concatenate([case.was[name] for case in cases]) for name in cases[0].was if name != STEP}
    now = {name: np.concatenate([case.now[name] for case in cases]) for name in cases[0].now if name != STEP}
    n_steps = np.repeat([float(case.was[STEP][0]) if STEP in case.was else 0.0 for case in cases], sizes)
    dtype = name_of(cases[0].before.parameter.dtype)
    value, gradient = was.pop(VALUE), was.pop("grad") / scale
    inputs = Inputs(
        value=value, gradient=gradient, n_steps=cast("float", n_steps), state=was, dtype=dtype, state_dtype=state_dtype
    )
    predicted = predict(options, inputs)
    meant, done = predicted.after.exact - value, now[VALUE] - value
    decay = options.lr * options.weight_decay * value if options.decoupled else 0.0
    unit = predicted.after.unit + np.abs(meant + decay) * _of_powers(options, cases[0].before.group, n_steps + 1)
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


def _of_powers(options: Any, group: Mapping[str, Any], n_steps: Array) -> Array | float:
    """How far off, relative, one rounding error of a beta puts the change that is corrected for the bias.

    1 - beta^t is then off by (t + 1) * eps * beta^t: the error of beta, t times, and that of the power. Two roundings
    follow: of the difference, and of its root or of the rate over it. All is computed in float64, or, where steps are
    counted on a device, in float32.
    """
    if not getattr(options, "bias_correction", False):
        return 0.0
    eps = FORMATS["float32" if group.get("capturable") else "float64"].eps
    powers = [beta**n_steps for beta in (options.beta1, options.beta2)]
    return eps * sum(2 + (n_steps + 1) * power / (1 - power) for power in powers)


def _factor(meant: Array, done: Array) -> float:
    """How many times the change that was meant was done; NaN where it is no multiple of it."""
    size = float(meant @ meant)
    factor = float(done @ meant) / size if size > 0 and math.isfinite(size) else math.nan
    rest = float(np.linalg.norm(done - factor * meant))
    return factor if rest <= NEAR * max(float(np.linalg.norm(done)), math.sqrt(size)) else math.nan


def _has_skipped(optimizer: Optimizer) -> bool:
    """A fused optimizer leaves an update out by itself."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and bool(found.item())


def _hook(optimizer: Optimizer) -> Source | None:
    """The first hook that the program has put around the step of this optimizer, or of all."""
    own: list[Mapping[int, Any]] = [
        *(getattr(optimizer, name, {}) for name in ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks")),
        *(getattr(hooks_of_all, name, {}) for name in ("_global_optimizer_post_hooks", "_global_optimizer_pre_hooks")),
    ]
    for hook in (each for hooks in own for each in hooks.values()):
        code = getattr(hook, "__code__", None)
        if code is not None and not str(getattr(hook, "__module__", "")).startswith("hypocenter."):
            return source_of(code.co_filename, code.co_firstlineno, code.co_name)
    return None
