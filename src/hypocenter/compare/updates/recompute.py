"""A recorded optimizer step done again in float64: is the result what the optimizer says that it does?

Numbers that know how far rounding may have moved them: a formula run on them says what it makes, and how exactly.

Each operation adds one rounding error of its result in the format that is computed in, and hands on those of what it
was given (Higham 2002, section 3.3, running error analysis). So terms that cancel do not count as a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hypocenter.compare.updates.comparison import RowVerdict, UpdateRow
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates
from hypocenter.compare.values.bits import Array
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.formats import FORMATS, Format
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.rule import RULES, decayed, rule_of
from hypocenter.record.reader import RecordedRun

COMPUTED_IN = {name: FORMATS[name] for name in ("float64", "float32", "float16", "bfloat16")}
ALLOWED = 4.0  # rounding errors that a result may have: see recompute.LIMIT_UNITS
_TINY = FORMATS["float64"].smallest_normal
LIMIT_UNITS = ALLOWED  # the most that rules of torch 2.13 made in 30 million elements is 3.1
AT_MOST = 1 << 20  # elements of a parameter that are looked at, evenly spread
_HALF = ("float16", "bfloat16")
_MASTERS = ("master", "master_param", "fp32_param")  # words of fused optimizers for a copy that they keep themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A parameter's update in float64, ready for a rule."""

    inputs: Inputs
    after: Array
    state_after: Mapping[str, Array]


def recompute(run: RecordedRun, step: int) -> tuple[UpdateRow, ...]:
    """Every parameter that an optimizer updated at this step, on every rank; empty where nothing is recorded.

    Args:
        run: a recording of level `tensors`.
        step: of the run, counted from 0.
    """
    return tuple(row_of(update) for update in RecordedUpdates(run).of(step))


def row_of(update: ParameterUpdate) -> UpdateRow:
    """One update, done again with the options that its optimizer states."""
    options = options_of(update)
    row = UpdateRow(
        step=update.step, rank=update.rank, name=update.name, kind=update.kind, options=options, update=update,
        n=math.prod(update.before.shape), dtype=update.before.dtype, verdict="cannot-tell",
    )  # fmt: skip
    if update.is_skipped:
        return replace(row, verdict="skipped", why="the loss scaler refused this step")
    if update.gradient is None:
        return _without_gradient(row)
    why_not = _why_not(update)
    if why_not or options is None:
        return replace(row, why=why_not or f"the rule of {update.kind} is not known here")
    case = case_of(update)
    found = error_of(case, options)
    if found.lacks_state:
        return replace(row, why=f"{update.kind} keeps its state where it is not recorded")
    if not math.isfinite(found.units):
        return replace(row, why="not all values are finite")
    if 2 * found.n_blind > case.after.size:
        return replace(row, why=f"{case.inputs.state_dtype} has no numbers for most of the state")
    verdict: RowVerdict = "as-stated" if found.units <= LIMIT_UNITS else "differs"
    return replace(
        row, verdict=verdict, error_units=found.units, relative_error=found.relative, worst_port=found.port,
        update_norm=float(np.linalg.norm(case.after - case.inputs.value)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """How far a recorded result is from a predicted one. `port`: where it is farthest."""

    units: float
    relative: float
    port: str
    n_blind: int  # elements whose result may be anything, as the format of the state has no numbers for it
    lacks_state: bool  # the rule makes state, and none of it is recorded


def error_of(case: Case, options: Options) -> Error:
    """Recorded against predicted: the parameter, and the state where both sides have it. Infinite: not all finite."""
    predicted = predict(options, case.inputs)
    with np.errstate(all="ignore"):
        apart = np.abs(case.after - predicted.after.exact)
        units = {"value": _most(_in_units(apart, predicted.after.unit))}
        for port, value in predicted.state.items():
            recorded = case.state_after.get(port)
            if recorded is not None:
                units[port] = _most(_in_units(np.abs(recorded - value.exact), value.unit))
        moved = float(np.linalg.norm(case.after - case.inputs.value))
        off = float(np.linalg.norm(apart))
    worst = max(units, key=lambda port: units[port])
    return Error(
        units=units[worst], relative=off / moved if moved else (0.0 if not off else math.inf), port=worst,
        n_blind=int(np.isinf(predicted.after.unit).sum()),
        lacks_state=bool(predicted.state) and predicted.state.keys().isdisjoint(case.state_after),
    )  # fmt: skip


def case_of(update: ParameterUpdate) -> Case:
    """The recorded values in float64; of a large tensor an even part."""
    n = math.prod(update.before.shape)
    stride = max(1, -(-n // AT_MOST))
    value = _flat(update.before, stride)
    gradient = _flat(update.gradient, stride) if update.gradient is not None else np.zeros_like(value)
    if update.grad_scale not in (0.0, 1.0):
        gradient = gradient / update.grad_scale
    state = dict(_arrays(update.state, n, stride))
    formats = [stored.dtype for stored in update.state_after.values() if stored.shape and stored.dtype in COMPUTED_IN]
    state_dtype = max([update.before.dtype, *formats], key=lambda name: COMPUTED_IN[name].eps)
    return Case(
        inputs=Inputs(
            value=value, gradient=gradient, n_steps=_n_steps(update), state=state, dtype=update.before.dtype,
            state_dtype=state_dtype,
        ),
        after=_flat(update.after, stride),
        state_after=dict(_arrays(update.state_after, n, stride)),
    )  # fmt: skip


def _n_steps(update: ParameterUpdate) -> float:
    """Steps that were taken before: the state's counter, or the group's, which has counted this one already."""
    counter = update.state.get("step")
    if counter is not None:
        return float(counter.values())
    if update.state_after.get("step") is not None:
        return float(update.state_after["step"].values()) - 1
    in_group = update.options.get("step")
    return float(in_group) - 1 if isinstance(in_group, (int, float)) and in_group >= 1 else 0.0


def _arrays(state: Mapping[str, Stored], n: int, stride: int) -> Iterator[tuple[str, Array]]:
    for port, stored in state.items():
        if math.prod(stored.shape) == n and (stored.shape or n == 1) and port != "step":
            yield port, _flat(stored, stride)


def _flat(stored: Stored, stride: int) -> Array:
    return Stored(dtype=stored.dtype, raw=stored.raw.reshape(-1)[::stride]).values()


def _why_not(update: ParameterUpdate) -> str:
    if update.before.dtype not in COMPUTED_IN:
        return f"parameters of {update.before.dtype} are not done again"
    if any(word in update.state_after for word in _MASTERS):
        return "the optimizer trains a float32 copy of its own, which is not recorded"
    return ""


def _without_gradient(row: UpdateRow) -> UpdateRow:
    before, after = row.update.before, row.update.after
    if before.shape == after.shape and np.array_equal(before.raw, after.raw):
        return replace(row, verdict="as-stated", why="no gradient, no update")
    return replace(row, verdict="differs", error_units=math.inf, why="it changed although it had no gradient")


def _in_units(apart: Array, unit: Array) -> Array:
    """Where the unit is infinite anything is within it."""
    return np.where(np.isinf(unit) & ~np.isnan(apart), 0.0, apart / unit)


def _most(values: Array) -> float:
    if not values.size:
        return 0.0
    largest = float(np.max(values))  # NaN where one is
    return largest if largest == largest else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the rule gets, in float64, flat. `n_steps`: taken before this one. `state` by torch's words."""

    value: Array
    gradient: Array
    n_steps: float
    state: Mapping[str, Array]
    dtype: str
    state_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the rule makes: the parameter, and the new state as far as it is predicted."""

    after: Rounded
    state: Mapping[str, Rounded]


def options_of(update: ParameterUpdate) -> Options | None:
    """What an optimizer says that it does; None for one whose rule is not known here, or without numbers."""
    classes = [base.rpartition(".")[2] for base in update.bases] or [update.kind]
    rule = rule_of(classes, update.options)
    return rule.read(update.options, classes) if rule else None


def predict(options: Options, inputs: Inputs) -> Predicted:
    """One step. The state, and what is made of the gradient alone, in the state's format; the weight in its own."""
    rule = RULES.entries()[options.family]
    form, state_form = COMPUTED_IN[inputs.dtype], COMPUTED_IN[inputs.state_dtype]
    with np.errstate(all="ignore"):  # what is not finite is looked at by the caller
        weight = given(inputs.value, form)
        gradient = decayed(weight, given(inputs.gradient, state_form).stored(state_form), options)
        held = {word: given(values, state_form) for word, values in inputs.state.items()}
        new = rule.remember(gradient, {**held, "step": inputs.n_steps}, options)
        state = {word: value.stored(state_form) for word, value in new.items() if isinstance(value, Rounded)}
        now = {word: value.into(form) for word, value in state.items()}
        towards = rule.formula.direction(gradient, {**now, "step": new["step"]}, options)
        return Predicted(after=weight + rule.change(weight, towards.into(form), options), state=state)


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """Exact values, the size of one rounding error in each, and the format that they are computed in."""

    exact: Array
    unit: Array
    form: Format

    __array_ufunc__ = None  # a NumPy scalar on the left leaves the operation to this class

    def stored(self, form: Format) -> Rounded:
        """As it is after it was written in this format, if it was not yet."""
        return replace(self, unit=np.maximum(self.unit, _one(self.exact, form)))

    def into(self, form: Format) -> Rounded:
        """To be computed with in this format."""
        return replace(self, form=form)

    def __neg__(self) -> Rounded:
        return replace(self, exact=-self.exact)

    def __add__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        return _made(self.exact + value, self.unit + unit, form)

    def __sub__(self, other: Any) -> Rounded:
        return self + -other

    def __mul__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        size = np.abs(value)
        off = np.where(size == 0, 0.0, self.unit * size) + np.where(
            unit == 0, 0.0, (np.abs(self.exact) + self.unit) * unit
        )
        return _made(self.exact * value, off, form)

    def __truediv__(self, other: Any) -> Rounded:
        value, unit, form = _parts(other, self)
        ratio = self.exact / value  # 0 / 0 is what rules make of an element that never had a gradient, where eps is 0
        return _made(ratio, self.unit / np.abs(value) + np.abs(ratio) * _stretched(unit, np.abs(value)), form)

    def __rtruediv__(self, other: float) -> Rounded:
        return Rounded(np.full_like(self.exact, other), np.zeros_like(self.exact), self.form) / self

    def __pow__(self, power: float) -> Rounded:
        if power == 2:
            return self * self
        root = np.sqrt(self.exact)  # what else a formula asks for is refused below
        if power != 0.5:
            raise TypeError(f"a formula of an optimizer may square and take the root, not raise to {power}")
        return _made(root, np.minimum(np.sqrt(self.unit), self.unit / np.maximum(root, _TINY)), self.form)

    def __abs__(self) -> Rounded:
        return replace(self, exact=np.abs(self.exact))

    def __lt__(self, other: Any) -> Array:
        return self.exact < _parts(other, self)[0]

    def __ge__(self, other: Any) -> Array:
        return self.exact >= _parts(other, self)[0]

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: float) -> Rounded:
        return -self + other


def given(values: Array, form: Format) -> Rounded:
    """Values that are as they are."""
    return Rounded(values, np.zeros_like(values), form)


def _parts(other: Any, beside: Rounded) -> tuple[Any, Any, Format]:
    """Values, their error, and the coarser format. A plain number has no error."""
    if isinstance(other, Rounded):
        return other.exact, other.unit, max(other.form, beside.form, key=lambda form: form.eps)
    return other, 0.0, beside.form


def _made(exact: Array, unit: Array, form: Format) -> Rounded:
    return Rounded(exact, unit + _one(exact, form), form)


def _one(exact: Array, form: Format) -> Array:
    return form.eps * np.abs(exact) + form.least_kept


def _stretched(off: Any, below: Any) -> Any:
    """By how much of itself a quotient may be off when what divides is off by so much for each rounding error.

    Where all errors that are allowed together could take most of the divisor away nothing can be said: infinite. That
    is so for small second moments in float16, which has no numbers for them.
    """
    left = 1 - ALLOWED * off / below
    return np.where(left > 0, off / below / np.maximum(left, _TINY), np.inf)
