"""Why two optimizers make other updates: the options that each really used, one against the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hypocenter.compare.updates.comparison import Effective, Reason, UpdateRow
from hypocenter.compare.updates.effective import effective
from hypocenter.compare.updates.predicted import predict
from hypocenter.compare.updates.recompute import Case, case_of
from hypocenter.optimizers.options import Options, called

_FLOAT32 = 2.0**-22  # relative: two roundings to float32 on either side
_NO_EFFECT = 1e-9  # of the update, relative: less than float32 can show


def explain(baseline: UpdateRow, candidate: UpdateRow) -> tuple[Reason, ...]:
    """What differs between the rules of two updates, the largest effect first; empty: nothing that can be told.

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
    """Fields that differ, without those that mean nothing beside the others."""
    if mine.family != other.family:
        return ["family"]
    names = [name for name in called(mine) if not _same(getattr(mine, name), getattr(other, name))]
    if "decoupled" in names and not mine.weight_decay and not other.weight_decay:
        names.remove("decoupled")
    return names


def _same(a: Any, b: Any) -> bool:
    """A framework that computes in float32 states 0.8999999761581421 for 0.9, and 0.2 times 0.001 an ulp beside it."""
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
    """Of the candidate's update, the share that goes when the option is as in the baseline."""
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
