"""Two runs' optimizer steps, parameter by parameter: the first whose update differs, and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hypocenter.compare.comparison import Matching
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.updates.comparison import (
    DecaySet,
    Effective,
    Reason,
    UpdateComparison,
    UpdateDifference,
    UpdateRow,
)
from hypocenter.compare.updates.effective import effective
from hypocenter.compare.updates.recompute import Case, case_of, row_of
from hypocenter.compare.updates.recorded import RecordedUpdates
from hypocenter.in_words import some
from hypocenter.optimizers.options import Options, called
from hypocenter.optimizers.predicted import predict
from hypocenter.optimizers.rule import RULES
from hypocenter.record.reader import RecordedRun

_NO_EFFECT = 1e-9  # of the update, relative
_SHOWN = 4
_FLOAT32 = 2.0**-22  # relative: two roundings to float32 on either side
_SURE = 8.0  # standard errors of the mean of many roundings
_ROUNDING = 0.6  # standard deviation of the rounding errors of a rule, in units: at most (the tests)


def compare_updates(
    baseline: RecordedRun, candidate: RecordedRun, matching: Matching | None = None
) -> UpdateComparison:
    """Compute again all updates that both runs hold, and compare what the optimizers really did.

    Args:
        matching: which parameters stand against each other; None: those of the same name.
    """
    ours, theirs = RecordedUpdates(baseline), RecordedUpdates(candidate)
    shift = shift_between(baseline, candidate)
    steps = tuple(step for step in ours.steps if step + shift in theirs.steps)
    if not steps:
        return UpdateComparison(
            status="cannot-tell", sentence=_nothing(ours, theirs), why_not=(_nothing(ours, theirs),)
        )
    found: dict[tuple[str, str], UpdateDifference] = {}
    why_not: dict[str, None] = {}
    n_compared, unknown = 0, set[tuple[str, str]]()
    known = set[tuple[str, str]]()
    for step in steps:
        mine, other = _rows(ours, step), _rows(theirs, step + shift)
        for pair in _pairs(matching, mine, other):
            a, b = mine[pair[0]], other[pair[1]]
            told = [row for row in (a, b) if row.verdict == "cannot-tell"]
            why_not |= dict.fromkeys(f"{row.name}: {row.why}" for row in told)
            if told or pair in found:
                unknown |= {pair} if told else set()
                continue
            n_compared += 1
            known.add(pair)
            reasons = _reasons(a, b)
            if any(_counts(reason) for reason in reasons):
                found[pair] = UpdateDifference(step=step, baseline=pair[0], candidate=pair[1], reasons=reasons)
    differences = tuple(found.values())
    only = _decays_only(baseline, candidate, known | unknown)
    status = "diverged" if differences or any(only) else "same" if known and not unknown - known else "cannot-tell"
    return UpdateComparison(
        status=status, sentence=_sentence(differences, only, len(known), len(unknown - known), steps),
        first=differences[0] if differences else None, differences=differences, decays_only=only,
        n_compared=n_compared, steps=steps, why_not=tuple(why_not),
    )  # fmt: skip


def _rows(updates: RecordedUpdates, step: int) -> dict[str, UpdateRow]:
    """Return the updates of a step by name; of a tensor that several ranks hold the first rank's part."""
    found: dict[str, UpdateRow] = {}
    for update in updates.of(step):
        if update.name not in found:
            found[update.name] = row_of(update)
    return found


def _pairs(
    matching: Matching | None, mine: Mapping[str, UpdateRow], other: Mapping[str, UpdateRow]
) -> Iterator[tuple[str, str]]:
    if matching is None:
        yield from ((name, name) for name in mine if name in other)
        return
    for pair in matching.pairs:
        if pair.baseline[0].phase != "param" or pair.baseline[0].port != "value":
            continue
        n = max(len(pair.baseline), len(pair.candidate))
        left = [spot.site for spot in pair.baseline] * (n if len(pair.baseline) == 1 else 1)
        right = [spot.site for spot in pair.candidate] * (n if len(pair.candidate) == 1 else 1)
        yield from ((a, b) for a, b in zip(left, right, strict=False) if a in mine and b in other)


def _reasons(mine: UpdateRow, other: UpdateRow) -> tuple[Reason, ...]:
    if mine.verdict == other.verdict == "as-stated" and mine.options == other.options:
        return ()
    if "skipped" in (mine.verdict, other.verdict):
        return () if mine.verdict == other.verdict else (_skipped(mine, other),)
    return explain(mine, other)


def _skipped(mine: UpdateRow, other: UpdateRow) -> Reason:
    side = "baseline" if mine.verdict == "skipped" else "candidate"
    return Reason(
        option="skipped", baseline=mine.verdict == "skipped", candidate=other.verdict == "skipped", effect=1.0,
        confidence="proven", text=f"only the {side} skipped this step: {mine.why or other.why}",
    )  # fmt: skip


def _counts(reason: Reason) -> bool:
    return reason.effect > _NO_EFFECT


def _decays_only(
    baseline: RecordedRun, candidate: RecordedRun, pairs: set[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    mine, other = decay_sets(baseline), decay_sets(candidate)
    left = tuple(sorted(a for a, b in pairs if a in mine.decayed and b in other.kept))
    right = tuple(sorted(b for a, b in pairs if a in mine.kept and b in other.decayed))
    return left, right


def _counted(differences: Sequence[UpdateDifference]) -> str:
    """Say which options differ for how many parameters: "eps of 5, weight decay of 3"."""
    n = Counter(reason.option for each in differences for reason in each.reasons if _counts(reason))
    words = {name: word for rule in RULES.entries().values() for name, word in called(rule.options).items()}
    return ", ".join(f"{words.get(option, option)} of {count}" for option, count in n.most_common())


def _nothing(ours: RecordedUpdates, theirs: RecordedUpdates) -> str:
    sides = [side for side, one in (("baseline", ours), ("candidate", theirs)) if not one.steps]
    if sides:
        return f"cannot tell: no optimizer step is recorded in the {' and the '.join(sides)} (level tensors keeps them)"
    return "cannot tell: no optimizer step is recorded on both sides"


def _sentence(
    differences: Sequence[UpdateDifference], only: tuple[tuple[str, ...], tuple[str, ...]], n: int, n_unknown: int,
    steps: Sequence[int],
) -> str:  # fmt: skip
    tail = f"; of {n_unknown} more it cannot be told" if n_unknown else ""
    if differences:
        first = differences[0]
        return (
            f"{len(differences)} of {n} parameters are updated by another rule ({_counted(differences)}), first at "
            f"step {first.step}: {first.reasons[0].text}{tail}"
        )
    if any(only):
        side, names = ("baseline", only[0]) if only[0] else ("candidate", only[1])
        return f"{len(names)} parameters decay in the {side} only: {some(names, _SHOWN)}{tail}"
    if not n:
        return "cannot tell: no parameter's update could be done again on both sides"
    shown = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:4]))}"
    return f"{n} parameters are updated by the same rule with the same options at {shown}{tail}"


def explain(baseline: UpdateRow, candidate: UpdateRow) -> tuple[Reason, ...]:
    """Return what differs between the rules of two updates, the largest effect first; () when nothing can be told.

    The inputs need not agree: for each side the options are found under which its own result follows from its own
    inputs. A side whose result follows from no options is a reason of its own ("unexplained").

    Args:
        baseline, candidate: rows of `recompute` of the same parameter.
    """
    sides = [row.options for row in (candidate, baseline)]
    found = [
        effective(row, [other] if other is not None else [])
        for row, other in zip((baseline, candidate), sides, strict=True)
    ]
    mine, other = found
    unknown = [
        _unexplained(row, name)
        for row, one, name in ((baseline, mine, "baseline"), (candidate, other, "candidate"))
        if one.options is None and row.verdict == "differs"
    ]
    if mine.options is None or other.options is None:
        return tuple(unknown)
    reasons = [
        _reason(name, mine, other, baseline, candidate) for name in _apart(mine.options, other.options)
    ]  # fmt: skip
    return tuple(sorted(reasons, key=lambda reason: -reason.effect))


def _apart(mine: Options, other: Options) -> list[str]:
    """Return the fields that differ, without those that mean nothing beside the others."""
    if mine.family != other.family:
        return ["family"]
    names = [name for name in called(mine) if not _same(getattr(mine, name), getattr(other, name))]
    if "decoupled" in names and not mine.weight_decay and not other.weight_decay:
        names.remove("decoupled")
    return names


def _same(a: Any, b: Any) -> bool:
    """Return whether two numbers are equal up to float32's rounding: some frameworks state 0.9 as 0.89999998."""
    if not (isinstance(a, float) and isinstance(b, float)):
        return a == b
    return a == b or abs(a - b) <= _FLOAT32 * max(abs(a), abs(b))


def _reason(name: str, mine: Effective, other: Effective, baseline: UpdateRow, candidate: UpdateRow) -> Reason:
    assert mine.options is not None
    assert other.options is not None
    a, b = getattr(mine.options, name), getattr(other.options, name)
    effect = _effect(case_of(candidate.update), other.options, name, a)
    words = called(mine.options)
    text = f"{words[name]} of {candidate.name} is {_say(a)} in the baseline and {_say(b)} in the candidate"
    for side, one, row in (("baseline", mine, baseline), ("candidate", other, candidate)):
        if name in one.changes:
            stated = one.changes[name][0]
            text += f"; the {side}'s {row.kind} states {_say(stated)}, its update shows {_say(one.changes[name][1])}"
            text += f" ({one.stated_error_units:.3g} rounding errors off as stated, {one.error_units:.2g} so)"
    also = [f"{' and '.join(words[key] for key in more)}" for one in (mine, other) for more in one.also]
    if also:
        text += f"; it may as well be {' or '.join(also[:2])}"
    if effect <= _NO_EFFECT:
        text += "; at this step that changes nothing"
    confidence = "possible" if effect <= _NO_EFFECT else "likely" if also else "proven"
    return Reason(option=name, baseline=a, candidate=b, effect=effect, confidence=confidence, text=text)


def _effect(case: Case, options: Options, name: str, value: Any) -> float:
    """Return the share of the candidate's update that goes away when the option is as in the baseline."""
    if name == "family":
        return 1.0
    as_is, changed = (predict(one, case.inputs).after.exact for one in (options, replace(options, **{name: value})))
    with np.errstate(all="ignore"):
        size = float(np.linalg.norm(as_is - case.inputs.value))
        apart = float(np.linalg.norm(as_is - changed))
    return apart / size if size else float(apart > 0)


def _unexplained(row: UpdateRow, side: str) -> Reason:
    what = row.why or (
        f"the {row.worst_port} is {row.error_units:.3g} rounding errors from what {row.kind} states, the update "
        f"{row.relative_error:.2g} of its size, and no other options explain it"
    )
    return Reason(
        option="unexplained", baseline=None, candidate=None, effect=row.relative_error, confidence="likely",
        cause="implementation-mismatch", text=f"the {side}'s update of {row.name} is not its optimizer's: {what}",
    )  # fmt: skip


def _say(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def decay_sets(run: RecordedRun) -> DecaySet:
    """Return which parameters decay: all of the recorded updates, or, without any, those that facts name.

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
    """Return the decay that one update shows; None where it is too small to be seen in it."""
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
    """Return the smallest decay that would have been seen: the stated one, else the smallest that people use."""
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
