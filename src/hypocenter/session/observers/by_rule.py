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
from numpy.typing import NDArray

from hypocenter.detect.law_rows import BALANCED, NOT_BY_RULE, SITE, UPDATE
from hypocenter.formats import FORMATS
from hypocenter.nouns import Source, replace
from hypocenter.optimizers.fitted import FAR, Fits, Look, Moved
from hypocenter.optimizers.fitted import NEAR as FITS
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.predicted import COMPUTED_IN, Inputs, in_units, predict
from hypocenter.optimizers.rounded import ALLOWED, Array
from hypocenter.session.events import ContextT, Observer
from hypocenter.session.observers.columns import VALUE, Block, blocks
from hypocenter.session.observers.counters import Counters
from hypocenter.session.observers.optimizer_rows import count_row, number_row

ELEMENTS = 1 << 14  # in all, at one step
FEWEST, MOST = 8, 1024  # of a parameter
STAYS = 2  # audited steps at which it obeyed, before one at which it does not
BROKEN = 4 * ALLOWED  # rounding errors
NEAR = 0.01  # relative: what is no multiple of the rule's change
STEP = "step"


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
class _Side:
    """What some parameters hold before or after a step, on the host.

    Attributes:
        values: by name, of all of them in one flat array in float64.
        sizes: by name, elements of each.
    """

    values: Mapping[str, Array]
    sizes: Mapping[str, NDArray[np.int64]]

    def only(self, kept: NDArray[np.bool_]) -> _Side:
        """Of some of them."""
        values = {name: each[np.repeat(kept, self.sizes[name])] for name, each in self.values.items()}
        return _Side(values=values, sizes={name: each[kept] for name, each in self.sizes.items()})

    def cut(self, name: str) -> list[Array]:
        """Of each of them."""
        return np.split(self.values[name], np.cumsum(self.sizes[name])[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Both sides of the update of parameters with the same options, formats and state."""

    group: Group
    parameters: Sequence[Any]
    forms: Mapping[str, str]
    was: _Side
    now: _Side

    def only(self, kept: NDArray[np.bool_]) -> _Case:
        """Some of them."""
        parameters = [each for each, is_kept in zip(self.parameters, kept, strict=True) if is_kept]
        return replace(self, parameters=parameters, was=self.was.only(kept), now=self.now.only(kept))

    def arrays(self, side: _Side) -> list[str]:
        """Names of state that has an element for each of the weight."""
        sizes, others = self.was.sizes[VALUE], (VALUE, "grad", STEP)
        return [name for name, n in side.sizes.items() if name not in others and np.array_equal(n, sizes)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Off:
    """How far parameters are from what the rule makes.

    Attributes:
        units: by "value" or name of state, of each in rounding errors.
        factor: of each, what was added to the weight over what the rule adds; NaN: it is no multiple.
        is_known: of each, whether it can be told.
    """

    units: Mapping[str, Array]
    factor: Array
    is_known: NDArray[np.bool_]

    @property
    def worst(self) -> Array:
        return np.maximum.reduce(list(self.units.values()))


class ByRule(Observer[ContextT]):
    """Writes a row for each audited step, and one for each parameter that is not what the rule makes."""

    def __init__(self, context: ContextT) -> None:
        super().__init__(context)
        self._audits = context.audits
        self._optimizer: Any = None
        self._before: Sequence[tuple[Group, Block]] = ()
        self._step = self._n_looked = self._size = 0
        self._n_obeyed: dict[int, int] = {}  # by id of a parameter: audited steps in a row
        self._counters = Counters()
        self._fits: dict[tuple[int, ...], Fits] = {}  # by id of an optimizer and number of its group, and state

    # what a framework says

    def groups(self, optimizer: Any) -> Iterable[tuple[Group, Sequence[Any]]]:
        """Its groups, each with its parameters."""
        raise NotImplementedError

    def is_dense(self, parameter: Any) -> bool:
        """Whether it has a dense gradient in its own format."""
        raise NotImplementedError

    def held(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        """A parameter and its state as they are now: by VALUE, "grad", STEP and the names of its state."""
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
            groups = self._in_turn(list(self.groups(optimizer)), step)
            n_parameters = sum(len(parameters) for _, parameters in groups)
            self._size = min(MOST, max(FEWEST, ELEMENTS // max(1, n_parameters)))
            found = [(group, block) for group, parameters in groups for block in self._blocks(optimizer, parameters)]
            self._before = [
                (group, block)
                for group, block in found
                if "grad" in block.columns and block.columns[VALUE].form in COMPUTED_IN
            ]
        self._optimizer, self._step = optimizer, step

    def _in_turn(self, groups: list[tuple[Group, Sequence[Any]]], step: int) -> list[tuple[Group, Sequence[Any]]]:
        """With those of their parameters that are looked at in the audit of this step."""
        part, n_before, found = self._audits.part(step, sum(len(each) for _, each in groups)), 0, []
        first, stride = part.start or 0, part.step or 1
        for group, parameters in groups:
            some = parameters[(first - n_before) % stride :: stride]
            found.append((group, [each for each in some if self.is_dense(each)]))
            n_before += len(parameters)
        return found

    def compare(self, optimizer: Any) -> None:
        """It has been applied: weights, gradients and state are there."""
        before, self._before = self._before, ()
        if self._optimizer is optimizer and before:
            with self._audits.spending(calls_program=False), np.errstate(all="ignore"):
                cases = [case for group, block in before for case in self._cases(optimizer, group, block)]
                counts = [self._judge(optimizer, case) for case in cases if case.group.options is not None]
                unknown = [case for case in cases if case.group.options is None]
                counts.append(self._judge_by_fit(optimizer, unknown))
                if unknown:
                    self._look_at_counter(optimizer, unknown)
                n, n_obeyed = map(sum, zip(*counts, strict=True))
                order = self.context.clock.next_order()
                self.rows.append(count_row(SITE, BALANCED, self._step, order, (n, n_obeyed), module=UPDATE))
        self._optimizer = None

    def _blocks(self, optimizer: Any, parameters: Sequence[Any]) -> list[Block]:
        held = [self.held(optimizer, parameter) for parameter in parameters]
        return blocks(self.context.framework, parameters, held, self._size, self._n_looked)

    def _side(self, block: Block) -> _Side:
        on_host, columns = self.context.framework.on_host, block.columns.items()
        values = {name: on_host(each.values) for name, each in columns}
        return _Side(values=values, sizes={name: np.array(each.sizes) for name, each in columns})

    def _cases(self, optimizer: Any, group: Group, before: Block) -> Iterator[_Case]:
        """With what is there now, of those that still hold what they held, in the same size."""
        was, forms = self._side(before), {name: each.form for name, each in before.columns.items()}
        for after in self._blocks(optimizer, before.parameters):
            held = set(map(id, after.parameters))
            of = was.only(np.array([id(each) in held for each in before.parameters]))
            case = _Case(group=group, parameters=after.parameters, forms=forms, was=of, now=self._side(after))
            if (of.sizes.keys() - {"grad"}) <= case.now.sizes.keys():
                sizes = [*of.sizes.values(), *case.now.sizes.values()]
                same = [each == case.now.sizes[name] for name, each in of.sizes.items() if name != "grad"]
                alike = np.logical_and.reduce([*same, of.sizes["grad"] == of.sizes[VALUE], *(n > 0 for n in sizes)])
                if alike.any():
                    yield case.only(alike)

    def _judge(self, optimizer: Any, case: _Case) -> tuple[int, int]:
        """Parameters of which the rule is known: how many were looked at, and how many obey."""
        off = _compared(case)
        again = off.is_known & (off.worst > ALLOWED)
        if again.any() and (late := self._as_changed(optimizer, case.only(again))) is not None:
            other, places = _compared(late), np.flatnonzero(again)
            better = other.is_known & (other.worst < off.worst[places])
            for found, now in (
                *((off.units[name], other.units[name]) for name in off.units),
                (off.factor, other.factor),
            ):
                found[places[better]] = now[better]
        n = n_obeyed = 0
        for place, (parameter, worst, is_known) in enumerate(
            zip(case.parameters, off.worst.tolist(), off.is_known.tolist(), strict=True)
        ):
            if is_known:
                n += 1
                if worst <= ALLOWED:
                    n_obeyed += 1
                    self._n_obeyed[id(parameter)] = self._n_obeyed.get(id(parameter), 0) + 1
                elif worst > BROKEN:
                    units = {name: float(each[place]) for name, each in off.units.items()}
                    self._break(optimizer, parameter, units, float(off.factor[place]))
        return n, n_obeyed

    def _as_changed(self, optimizer: Any, case: _Case) -> _Case | None:
        """With the gradient and the options that a hook of the optimizer may have left."""
        group = self.changed_in_step(optimizer, case.group)
        if group is None or not np.array_equal(case.now.sizes.get("grad", ()), case.was.sizes["grad"]):
            return None
        was = replace(case.was, values={**case.was.values, "grad": case.now.values["grad"]})
        return replace(case, group=group, was=was)

    def _judge_by_fit(self, optimizer: Any, cases: Sequence[_Case]) -> tuple[int, int]:
        """Cases of a rule that its steps alone tell: how many were looked at, and how many obey."""
        groups: dict[tuple[int, ...], list[_Case]] = {}
        for case in cases:
            state = hash(tuple(sorted(case.arrays(case.now))))
            groups.setdefault((id(optimizer), case.group.number, state), []).append(case)
        n = n_obeyed = 0
        for key, together in groups.items():
            moved = [each for case in together for each in _moved(case)]
            if not all(np.isfinite(each.after).all() and np.isfinite(each.gradient).all() for each in moved):
                continue
            group = together[0].group
            looks = self._fits.setdefault(key, Fits()).look(moved, group.mixes, group.eps)
            for place, parameter in enumerate(p for case in together for p in case.parameters):
                known = {name: look for name, look in looks.items() if not math.isnan(look.apart[place])}
                if known:
                    n += 1
                    n_obeyed += self._keeps(parameter, known, place, optimizer)
        return n, n_obeyed

    def _look_at_counter(self, optimizer: Any, cases: Sequence[_Case]) -> None:
        moved = {id(p): each for case in cases for p, each in zip(case.parameters, _moved(case), strict=True)}
        found = (
            self._counters.row(optimizer, self._step, moved),
            self._counters.of_averages(optimizer, self._step, [*moved.values()]),
        )
        self.rows += [replace(row, order=self.context.clock.next_order()) for row in found if row is not None]

    def _keeps(self, parameter: Any, looks: Mapping[str, Look], place: int, optimizer: Any) -> bool:
        """Note whether it goes on by the rule of its first steps; where it does not, and did, write a row."""
        apart = {name: look.apart[place] for name, look in looks.items()}
        if max(apart.values()) <= FITS:
            self._n_obeyed[id(parameter)] = self._n_obeyed.get(id(parameter), 0) + 1
            return True
        if max(apart.values()) > FAR:
            off = [name for name, part in apart.items() if part > FAR]
            name = next((each for each in off if each != VALUE), VALUE)
            units, form = dict.fromkeys(off, BROKEN + 1.0), str(looks[name].form)
            self._break(optimizer, parameter, units, looks[name].factor[place], module=name, names=(form,))
        return False

    def _break(self, optimizer: Any, parameter: Any, units: Mapping[str, float], factor: float, **more: Any) -> None:
        """It does not obey: where that is new, write a row."""
        n_before = self._n_obeyed.get(id(parameter), 0)
        self._n_obeyed[id(parameter)] = -(1 << 30)  # from here on it is known
        if n_before < STAYS:
            return
        state = {name: each for name, each in units.items() if name != VALUE and each > BROKEN}
        row = number_row(
            self.context.label(parameter), NOT_BY_RULE, self._step, self.context.clock.next_order(), factor,
            dtype=self.context.framework.name_of(parameter.dtype), call=n_before,
            module=max(state, key=lambda name: state[name]) if state else VALUE,
        )  # fmt: skip
        source, shape = self.hook(optimizer), tuple(parameter.shape)
        self.rows.append(replace(row, op=type(optimizer).__name__, source=source, shape=shape, **more))


def _moved(case: _Case) -> Iterator[Moved]:
    eps = max(FORMATS[form].eps for form in case.forms.values() if form in FORMATS)
    names = case.arrays(case.was), case.arrays(case.now)
    state, new = ({name: side.cut(name) for name in own} for side, own in zip((case.was, case.now), names, strict=True))
    flat = zip(case.was.cut(VALUE), case.was.cut("grad"), case.now.cut(VALUE), strict=True)
    for i, (value, gradient, after) in enumerate(flat):
        yield Moved(
            value=value, gradient=gradient, after=after, eps=eps,
            state={name: parts[i] for name, parts in state.items()},
            new={name: parts[i] for name, parts in new.items()},
        )  # fmt: skip


def mixes(group: Mapping[str, Any]) -> list[float]:
    """Numbers of a group between 0 and 1 that are no learning rate, decay or eps: betas, by whatever name."""
    flat = [each for value in group.values() for each in (value if isinstance(value, (tuple, list)) else (value,))]
    return sorted({each for each in flat if isinstance(each, float) and 0.5 <= each < 1.0})


def _compared(case: _Case) -> _Off:
    """What is there, with what the rule makes."""
    options, was, now, dtype = cast("Options", case.group.options), case.was.values, case.now.values, case.forms[VALUE]
    forms = [form for name, form in case.forms.items() if name != STEP and form in COMPUTED_IN]
    state_dtype = max(forms, key=lambda name: COMPUTED_IN[name].eps)  # the coarsest: of the weight, or of its state
    sizes = case.was.sizes[VALUE]
    starts = np.cumsum(sizes) - sizes
    n_steps = np.repeat(was[STEP] if STEP in was else np.zeros(len(sizes)), sizes)
    predicted = predict(options, Inputs(
        value=was[VALUE], gradient=was["grad"] / case.group.scale, n_steps=cast("float", n_steps),
        state={name: was[name] for name in case.arrays(case.was)}, dtype=dtype, state_dtype=state_dtype,
    ))  # fmt: skip
    meant, done = predicted.after.exact - was[VALUE], now[VALUE] - was[VALUE]
    decay = options.lr * options.weight_decay * was[VALUE] if options.decoupled else 0.0
    unit = predicted.after.unit + np.abs(meant + decay) * _of_powers(options, case.group.powers_in, n_steps + 1)
    units = {VALUE: _units(now[VALUE] - predicted.after.exact, unit, dtype)}
    there = case.arrays(case.now)
    for name, made in predicted.state.items():
        if name in there:
            units[name] = _units(now[name] - made.exact, made.unit, state_dtype)
    most = {name: np.maximum.reduceat(each, starts) for name, each in units.items()}
    if STEP in was and STEP in now:
        most[STEP] = np.where(now[STEP] == was[STEP] + 1, 0.0, np.inf)
    is_finite = np.logical_and.reduce([np.isfinite(v) for v in (*now.values(), meant) if v.shape == meant.shape])
    off = _Off(units=most, factor=np.ones(len(sizes)), is_known=np.logical_and.reduceat(is_finite, starts))
    for i in np.flatnonzero(off.is_known & (off.worst > ALLOWED)):
        here = slice(starts[i], starts[i] + sizes[i])
        off.factor[i] = _factor(meant[here], done[here])
    return off


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
