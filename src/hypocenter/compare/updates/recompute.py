"""A recorded optimizer step done again in float64: is the result what the optimizer says that it does?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.updates.comparison import RowVerdict, UpdateRow
from hypocenter.compare.updates.recorded import ParameterUpdate, RecordedUpdates
from hypocenter.compare.values.bits import Array
from hypocenter.compare.values.tensor_file import Stored
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.predicted import COMPUTED_IN, Inputs, in_units, predict
from hypocenter.optimizers.rounded import ALLOWED
from hypocenter.optimizers.rule import rule_of
from hypocenter.record.reader import RecordedRun

AT_MOST = 1 << 20  # elements of a parameter that are looked at, evenly spread
_MASTERS = ("master", "master_param", "fp32_param")  # words of fused optimizers for a copy that they keep themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A parameter's update in float64, ready for a rule."""

    inputs: Inputs
    after: Array
    state_after: Mapping[str, Array]


def recompute(run: RecordedRun, step: int) -> tuple[UpdateRow, ...]:
    """Compute again every parameter update of this step, on every rank; empty where nothing is recorded.

    Args:
        run: a recording of level `tensors`.
        step: of the run, counted from 0.
    """
    return tuple(row_of(update) for update in RecordedUpdates(run).of(step))


def row_of(update: ParameterUpdate) -> UpdateRow:
    """Compute one update again with the options that its optimizer states, and judge it."""
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
    verdict: RowVerdict = "as-stated" if found.units <= ALLOWED else "differs"
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
    """Compare recorded with predicted: the parameter, and the state that both have. Infinite: not all are finite."""
    predicted = predict(options, case.inputs)
    with np.errstate(all="ignore"):
        apart = np.abs(case.after - predicted.after.exact)
        units = {"value": _most(in_units(apart, predicted.after.unit))}
        for port, value in predicted.state.items():
            recorded = case.state_after.get(port)
            if recorded is not None:
                units[port] = _most(in_units(np.abs(recorded - value.exact), value.unit))
        moved = float(np.linalg.norm(case.after - case.inputs.value))
        off = float(np.linalg.norm(apart))
    worst = max(units, key=lambda port: units[port])
    return Error(
        units=units[worst], relative=off / moved if moved else (0.0 if not off else math.inf), port=worst,
        n_blind=int(np.isinf(predicted.after.unit).sum()),
        lacks_state=bool(predicted.state) and predicted.state.keys().isdisjoint(case.state_after),
    )  # fmt: skip


def case_of(update: ParameterUpdate) -> Case:
    """Return the recorded values in float64; of a large tensor only elements at even distances."""
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
    """Return how many steps were taken before: by the state's counter, or the group's, which has counted this one."""
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


def _most(values: Array) -> float:
    if not values.size:
        return 0.0
    largest = float(np.max(values))  # NaN where one is
    return largest if largest == largest else math.inf


def options_of(update: ParameterUpdate) -> Options | None:
    """Read the options that an optimizer states; None when its rule is not known here, or numbers are missing."""
    classes = [base.rpartition(".")[2] for base in update.bases] or [update.kind]
    rule = rule_of(classes, update.options)
    return rule.read(update.options, classes) if rule else None
