"""What came before and after a jump of the loss or of the gradient's norm, from the steps' records."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypocenter.detect.spikes import Series
from hypocenter.diagnose.fold import SPIKE
from hypocenter.diagnose.group import Folded
from hypocenter.diagnose.numbers import counted
from hypocenter.diagnose.records import of_rank
from hypocenter.diagnose.spike_words import BEFORE, RISE, rose
from hypocenter.nouns import Finding, StepRecord


def with_course(folded: Sequence[Folded], records: Mapping[tuple[int, int], StepRecord]) -> tuple[Folded, ...]:
    """The same findings; those of a jump tell of the learning rate before it, and whether it came back.

    Args:
        folded: findings.
        records: step records by (rank, step).
    """
    found = [each for each in folded if each.finding.code == SPIKE]
    past = {rank: of_rank(records, rank) for rank in {each.finding.rank for each in found}}
    return tuple(
        replace(each, finding=_told(each.finding, past[each.finding.rank])) if each in found else each
        for each in folded
    )


def _told(finding: Finding, records: Sequence[StepRecord]) -> Finding:
    at = next((i for i, record in enumerate(records) if record.step == finding.step), None)
    if at is None:
        return finding
    return replace(
        finding,
        why=tuple(dict.fromkeys((*finding.why, *_raised(records[max(0, at - BEFORE - 1) : at + 1])))),
        then=(*finding.then, *_came_back(records, at)),
    )


def _raised(records: Sequence[StepRecord]) -> tuple[str, ...]:
    pairs = [(a, b) for a, b in itertools.pairwise(records) if a.lr and b.lr and b.lr >= RISE * a.lr]
    return tuple(rose(a.lr or 0.0, b.lr or 0.0, b.step) for a, b in pairs)


def _came_back(records: Sequence[StepRecord], at: int) -> tuple[str, ...]:
    """How many steps it took to come back below what counts as a jump."""
    found: list[str] = []
    for name, values in (
        ("the loss", [record.loss for record in records]),
        ("the gradient's norm", [record.grad_norm for record in records]),
    ):
        series = Series()
        jump = [series.add(value) for value in values[: at + 1]][-1]
        if jump is None:
            continue
        later = values[at + 1 :]
        n = next((i for i, value in enumerate(later) if value is not None and abs(value) <= jump.limit), None)
        if n is not None:
            found.append(f"{name} was as before {counted(n + 1, 'step')} later")
        elif later:
            found.append(f"{name} has not come back in the {counted(len(later), 'step')} after it")
    return tuple(found)
