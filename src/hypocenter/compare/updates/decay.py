"""Which parameters decay: as their updates show where these can show it, else as the optimizer's groups say."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from hypocenter.compare.updates.comparison import DecaySet, UpdateRow
from hypocenter.compare.updates.effective import effective
from hypocenter.compare.updates.predicted import predict
from hypocenter.compare.updates.recompute import case_of, row_of
from hypocenter.compare.updates.recorded import RecordedUpdates
from hypocenter.record.reader import RecordedRun

_SURE = 8.0  # standard errors of the mean of many roundings
_ROUNDING = 0.6  # standard deviation of the rounding errors of a rule, in units: at most (the tests)


def decay_sets(run: RecordedRun) -> DecaySet:
    """All parameters of the recorded updates; of a recording without any, those that its facts name.

    A parameter of zeros (a fresh bias) shows no decay: then a later recorded step decides, or the groups do.
    """
    updates = RecordedUpdates(run)
    stated: dict[str, float] = _from_facts(run)
    measured: dict[str, float] = {}
    for step in updates.steps:
        for update in updates.of(step):
            row = row_of(update)
            if row.options is not None:
                stated[row.name] = row.options.weight_decay
            rate = _measured(row) if row.name not in measured else None
            if rate is not None:
                measured[row.name] = rate
    rates = {**stated, **measured}
    return DecaySet(
        decayed=frozenset(name for name, rate in rates.items() if rate),
        kept=frozenset(name for name, rate in rates.items() if not rate),
        measured=frozenset(measured),
        rates=rates,
    )


def _measured(row: UpdateRow) -> float | None:
    """The decay of one update; None where it is too small to be seen in it."""
    found = effective(row)
    options = found.options
    if options is None or not options.lr:
        return None
    case = case_of(row.update)
    without = predict(replace(options, weight_decay=0.0), case.inputs).after
    value = case.inputs.value
    size = float(np.dot(value, value))
    if not size:
        return None
    if not options.decoupled and options.weight_decay:  # in the gradient: it was found or confirmed there
        changed = np.abs(without.exact - case.after) / without.unit
        return options.weight_decay if float(changed.max(initial=0.0)) > _SURE else None
    share = float(np.dot(without.exact - case.after, value)) / size
    error = _ROUNDING * math.sqrt(float(np.dot(without.unit * value, without.unit * value))) / size
    smallest = _smallest_rate(options.weight_decay) * options.lr
    if abs(share) > _SURE * error:
        return options.weight_decay or share / options.lr
    return 0.0 if smallest > _SURE * error else None


def _smallest_rate(stated: float) -> float:
    """A decay that would have been seen: the stated one, or the smallest that people use."""
    return stated or 1e-3


def _from_facts(run: RecordedRun) -> dict[str, float]:
    from hypocenter.record.facts_file import read_facts
    from hypocenter.record.layout import rank_directory

    found: dict[str, float] = {}
    for rank in run.ranks:
        facts = read_facts(rank_directory(run.directory, rank))
        for group in (group for one in (facts.optimizers if facts else ()) for group in one.groups):
            rate = group.options.get("weight_decay")
            if isinstance(rate, (int, float)):
                found |= dict.fromkeys(group.parameters, float(rate))
    return found
