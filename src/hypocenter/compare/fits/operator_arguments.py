"""An operator of the code that differs first is called with other constants, or another operator is called.

What it means
    A function is told something else (`F.gelu(x, approximate="tanh")`, the eps of `F.layer_norm`, the scale of an
    attention, a rate, a dimension, a format), or the code of one side computes something else there.

How it is decided
    The operators that each module calls, with all that they are told beside tensors and sizes, are noted at level `ops`
    and in the replay that `--calibrate` begins with (`run --for diff` has it). Those of the code that differs first are
    put side by side in their order. One operator of it that is told other constants, and nothing else that differs, is
    likely the cause; so is one that stands where another does. Of several the first is named, as possible. Numbers are
    not checked, so it is asked only when no fit that knows what a setting does explains the difference.

What to do
    Make both sides call the operator alike, then compare again.

When it is wrong
    When the same is computed in two ways (attention written out, and as one operator), and something else differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Confidence, Fit
from hypocenter.compare.fit_evidence import say
from hypocenter.compare.fitting import fit
from hypocenter.in_words import some
from hypocenter.nouns import OperatorCall

_SHOWN = 3  # operators that are named of a side
Calls = Sequence[OperatorCall]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Apart:
    """Calls of both sides that stand for each other and are not alike; one side may be empty."""

    mine: Calls
    other: Calls


@fit("operator-arguments", last=True)
def operator_arguments(case: Case) -> Fit | None:
    """What the operators of the first code that differs are told."""
    if case.first.phase not in ("forward", "loss") or not case.inputs_agree:
        return None
    mine, other = (_calls(case, side) for side in (0, 1))
    if not mine or not other:
        return None
    found = list(_apart(mine, other))
    if not found:
        return None
    first = found[0]
    is_alone = len(found) == 1 and max(len(first.mine), len(first.other)) == 1
    text = f"{case.first.site or 'the model'}: {_said(first)}" + (f"; and {len(found) - 1} more" if found[1:] else "")
    confidence: Confidence = "likely" if is_alone else "possible"
    return Fit(
        name="operator-arguments", cause="implementation-mismatch", explained=1.0, confidence=confidence, text=text,
        values={"baseline": [call.op for call in first.mine], "candidate": [call.op for call in first.other]},
        fix="make both sides call the operator alike",
    )  # fmt: skip


def _calls(case: Case, side: int) -> Calls:
    """Return the operator calls of the code that differs first: a module's own, or what is around the model."""
    facts, site = case.facts[side], (case.first.site, case.first.candidate_site)[side]
    phase = case.first.phase
    return [one for one in facts.calls if one.module == site and one.phase == phase] if facts is not None else []


def _apart(mine: Calls, other: Calls) -> Iterator[_Apart]:
    names = [call.op for call in mine], [call.op for call in other]
    for kind, a, b, c, d in SequenceMatcher(None, *names, autojunk=False).get_opcodes():
        if kind != "equal":
            yield _Apart(mine=mine[a:b], other=other[c:d])
            continue
        for left, right in zip(mine[a:b], other[c:d], strict=True):
            if left.constants != right.constants:
                yield _Apart(mine=[left], other=[right])


def _said(apart: _Apart) -> str:
    if len(apart.mine) == len(apart.other) == 1 and apart.mine[0].op == apart.other[0].op:
        return _told(apart.mine[0], apart.other[0])
    sides = [some((f"{call.op}{_at(call)}" for call in calls), _SHOWN) for calls in (apart.mine, apart.other)]
    if not all(sides):
        side = "baseline" if sides[0] else "candidate"
        return f"the {side} alone calls {sides[0] or sides[1]}"
    return f"the baseline calls {sides[0]} where the candidate calls {sides[1]}"


def _told(mine: OperatorCall, other: OperatorCall) -> str:
    names = sorted(mine.constants.keys() | other.constants.keys())
    differ = [name for name in names if mine.constants.get(name) != other.constants.get(name)]
    values = "; ".join(
        f"{name} is {say(mine.constants.get(name))} in the baseline and "
        f"{say(other.constants.get(name))} in the candidate"
        for name in differ
    )
    return f"{mine.op}{_at(mine)}: {values}"


def _at(call: OperatorCall) -> str:
    return f" ({call.where})" if call.where else ""
