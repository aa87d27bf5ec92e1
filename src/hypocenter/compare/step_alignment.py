"""Which step of the candidate stands against which of the baseline: by number, or shifted when that fits better."""

from __future__ import annotations

from collections.abc import Sequence

from hypocenter.record.reader import RecordedRun

_MOST_SHIFT = 3  # steps tried both ways: counting from 1, a warm-up step that is not counted
_ENOUGH = 2  # equal losses that say more than chance

Losses = dict[int, float]


def shift_of(baseline: Losses, candidate: Losses, steps: tuple[Sequence[int], Sequence[int]]) -> int:
    """Return what to add to a step of the baseline to get the candidate's.

    Args:
        baseline, candidate: loss of each step, as far as it is known.
        steps: the recorded steps of both, rising.
    """
    mine, other = steps
    if mine and other and not set(mine) & set(other):
        return other[0] - mine[0]
    counts = {shift: _n_equal(baseline, candidate, shift) for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1)}
    best = max(counts, key=lambda shift: (counts[shift], -abs(shift)))
    return best if counts[0] == 0 and counts[best] >= _ENOUGH else 0


def shift_between(baseline: RecordedRun, candidate: RecordedRun) -> int:
    """Return what to add to a step of the baseline to get the candidate's, by the losses that both recorded."""
    losses: list[dict[int, float]] = []
    steps: list[list[int]] = []
    for run in (baseline, candidate):
        records = [record for rank, record in run.step_records() if rank == run.ranks[0]]
        losses.append({record.step: record.loss for record in records if record.loss is not None})
        steps.append(sorted({record.step for record in records}))
    return shift_of(losses[0], losses[1], (steps[0], steps[1]))


def _n_equal(baseline: Losses, candidate: Losses, shift: int) -> int:
    return sum(loss == candidate.get(step + shift) for step, loss in baseline.items())
