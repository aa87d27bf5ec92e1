"""The options under which a recorded update comes out as recorded: those that are stated, or the fewest others.

Each option in turn, then two together, are tried with other values: switched, a usual number, the other side's number,
and the number that the recorded values give by least squares. Only what brings the whole result to within rounding
counts; where several do, switches and usual numbers come before fitted ones, and the others are listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hypocenter.compare.updates.comparison import Effective, UpdateRow
from hypocenter.compare.updates.recompute import Case, case_of, error_of
from hypocenter.compare.values.bits import Array
from hypocenter.optimizers.options import Options, called
from hypocenter.optimizers.predicted import predict
from hypocenter.optimizers.rounded import ALLOWED

_EPS = (1e-8, 1e-6, 1e-5, 1e-7, 1e-10, 1e-12, 1e-15, 1e-3, 0.0)  # of Adam in frameworks and papers
_BETA1, _BETA2 = (0.9, 0.95, 0.8, 0.0), (0.999, 0.95, 0.99, 0.98, 0.9, 0.9999)
_DECAY = (0.0, 0.01, 0.1, 0.05, 0.001)
_ROUND = {"lr": 1e-5, "weight_decay": 2e-2, "beta1": 1e-5, "beta2": 1e-6, "eps": 2e-2, "momentum": 1e-5}
"""Relative error of a fitted number, below which the nearest short decimal is believed."""
_FEW = 1 << 16  # elements with which is searched
_BOTH_AT_ONCE = 60  # pairs of changes that are tried, most likely ones first


def effective(row: UpdateRow, also: Iterable[Options] = ()) -> Effective:
    """Find the options under which the optimizer would have done what it did.

    Args:
        row: of `recompute`.
        also: options whose numbers are tried too: the other side's.
    """
    stated = row.options
    if stated is None or row.verdict in ("cannot-tell", "skipped") or row.update.gradient is None:
        return Effective(options=None)
    if row.verdict == "as-stated":
        return Effective(options=stated, error_units=row.error_units, stated_error_units=row.error_units)
    case = _few(case_of(row.update))
    others = [one for one in also if one.family == stated.family]
    found = _one_change(case, stated, others) or _two_changes(case, stated, others)
    if not found:
        return Effective(options=None, stated_error_units=row.error_units)
    found.sort(key=lambda each: each[0])
    changes = [_changes(stated, options) for _, _, options in found]
    distinct = [change for i, change in enumerate(changes) if change.keys() not in [c.keys() for c in changes[:i]]]
    return Effective(
        options=found[0][2], changes=changes[0], also=tuple(distinct[1:]), error_units=found[0][1],
        stated_error_units=row.error_units,
    )  # fmt: skip


_Found = list[tuple[tuple[int, int, float], float, Options]]  # (how far-fetched, error, options)


def _one_change(case: Case, stated: Options, others: list[Options]) -> _Found:
    found: _Found = []
    for rank, options in _alternatives(case, stated, others):
        units = error_of(case, options).units
        if units <= ALLOWED:
            found.append(((1, rank, units), units, options))
    return found


def _two_changes(case: Case, stated: Options, others: list[Options]) -> _Found:
    """Try the changes that help most by themselves, each together with any other."""
    tried = [(error_of(case, options).relative, rank, options) for rank, options in _alternatives(case, stated, others)]
    tried.sort(key=lambda each: (not math.isfinite(each[0]), each[0]))
    found: _Found = []
    for _, rank, first in tried[:_BOTH_AT_ONCE]:
        changed = set(_changes(stated, first))
        for other_rank, options in _alternatives(case, first, others):
            now = set(_changes(stated, options))
            if not changed < now:
                continue
            units = error_of(case, options).units
            if units <= ALLOWED:
                found.append(((2, rank + other_rank, units), units, options))
        if found:
            break
    return found


def _alternatives(case: Case, stated: Options, others: list[Options]) -> Iterator[tuple[int, Options]]:
    """Yield (how far-fetched, options with one of them changed)."""
    for name in called(stated):
        now = getattr(stated, name)
        seen = {now}
        for rank, value in _values(name, case, stated, others):
            if value not in seen:
                seen.add(value)
                yield rank, replace(stated, **{name: value})


def _values(name: str, case: Case, stated: Options, others: list[Options]) -> Iterator[tuple[int, Any]]:
    now = getattr(stated, name)
    if isinstance(now, bool):
        yield 1, not now
    if isinstance(now, (bool, str)):
        return
    yield from ((0, getattr(one, name)) for one in others)
    usual = {"eps": _EPS, "beta1": _BETA1, "beta2": _BETA2, "weight_decay": _DECAY, "momentum": (0.9, 0.0)}
    yield from ((1, value) for value in usual.get(name, ()))
    fitted = _fitted(name, case, stated)
    if fitted is not None and math.isfinite(fitted):
        yield 2, _short(fitted, _ROUND.get(name, 1e-5))
        yield 3, fitted


def _fitted(name: str, case: Case, options: Options) -> float | None:
    """Return the number that fits best, all others as they are; None where the values say nothing of it.

    What an option makes of the state, or of the weight where it does not touch the state, is taken for a straight line:
    that it is for rates, factors and decay. Eps stands below a line.
    """
    with np.errstate(all="ignore"):
        if name == "eps":
            return _eps(case, options)
        made = [predict(replace(options, **{name: value}), case.inputs) for value in (0.0, 1.0)]
        for port in (*made[0].state, "value"):
            recorded = case.after if port == "value" else case.state_after.get(port)
            if recorded is not None:
                at_0, at_1 = ((one.after if port == "value" else one.state[port]).exact for one in made)
                if not np.array_equal(at_0, at_1):
                    return _along(recorded - at_0, at_1 - at_0)
    return None


def _eps(case: Case, options: Options) -> float | None:
    """Return eps: one over the update is a straight line in eps; where the root beside it is small it shows best."""
    none, one, infinite = (predict(replace(options, eps=value), case.inputs).after for value in (0.0, 1.0, math.inf))
    moved, of_none, of_one = (after - infinite.exact for after in (case.after, none.exact, one.exact))
    found = (1 / moved - 1 / of_none) / (1 / of_one - 1 / of_none)
    usable = np.isfinite(found) & (np.abs(moved) > 64 * none.unit)
    if not usable.any():
        return None
    order = np.argsort(np.abs(of_one / of_none)[usable])[: max(1, int(usable.sum()) // 8)]
    return max(0.0, float(np.median(found[usable][order])))


def _along(what: Array, direction: Array) -> float | None:
    """Return the factor by which `what` is `direction`, by least squares; None when `direction` is zero."""
    size = float(np.dot(direction, direction))
    return float(np.dot(what, direction)) / size if size > 0 and math.isfinite(size) else None


def _short(value: float, tolerance: float) -> float:
    """Return the shortest decimal within the tolerance; the value itself when none of five digits is."""
    for digits in range(1, 6):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= tolerance * abs(value):
            return short
    return value


def _few(case: Case) -> Case:
    n = case.after.size
    if n <= _FEW:
        return case
    stride = -(-n // _FEW)
    inputs = case.inputs
    return replace(
        case,
        after=case.after[::stride],
        state_after={port: values[::stride] for port, values in case.state_after.items()},
        inputs=replace(
            inputs, value=inputs.value[::stride], gradient=inputs.gradient[::stride],
            state={port: values[::stride] for port, values in inputs.state.items()},
        ),
    )  # fmt: skip


def _changes(stated: Options, options: Options) -> dict[str, tuple[Any, Any]]:
    names = [field.name for field in fields(stated)]
    return {n: (getattr(stated, n), getattr(options, n)) for n in names if getattr(stated, n) != getattr(options, n)}
