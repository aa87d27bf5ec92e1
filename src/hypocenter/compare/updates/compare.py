"""Two runs' optimizer steps, parameter by parameter: the first whose update differs, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from hypocenter.compare.comparison import Matching
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.updates.comparison import Reason, UpdateComparison, UpdateDifference, UpdateRow
from hypocenter.compare.updates.decay import decay_sets
from hypocenter.compare.updates.explain import explain
from hypocenter.compare.updates.recompute import row_of
from hypocenter.compare.updates.recorded import RecordedUpdates
from hypocenter.optimizers.options import called
from hypocenter.optimizers.rule import RULES
from hypocenter.record.reader import RecordedRun

_NO_EFFECT = 1e-9  # of the update, relative
_SHOWN = 4


def compare_updates(
    baseline: RecordedRun, candidate: RecordedRun, matching: Matching | None = None
) -> UpdateComparison:
    """Do all steps that both runs hold again, and compare what the optimizers really did.

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
        n_compared=n_compared, n_cannot_tell=len(unknown - known), steps=steps, why_not=tuple(why_not),
    )  # fmt: skip


def _rows(updates: RecordedUpdates, step: int) -> dict[str, UpdateRow]:
    """By name; of a tensor that several ranks hold the first rank's part."""
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
    """ "eps of 5, weight decay of 3" """
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
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"{len(names)} parameters decay in the {side} only: {', '.join(names[:_SHOWN])}{more}{tail}"
    if not n:
        return "cannot tell: no parameter's update could be done again on both sides"
    shown = f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps[:4]))}"
    return f"{n} parameters are updated by the same rule with the same options at {shown}{tail}"
