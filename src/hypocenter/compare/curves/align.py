"""Two series over the same steps: offsets, other logging intervals, means over an interval, missing steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.curve import Curve, Series, Steps, Values, is_number

_COVERED = 0.9  # of an interval whose steps are averaged: with fewer it is left out
_LAGS = (-3, -2, -1, 0, 1, 2, 3)  # steps: conventions differ by one, an accumulation or a lost batch by few
_DECISIVE = 0.5  # of the root mean square difference: what a shift must bring to be told
_LAG_POINTS = 20  # steps that a shift is judged by, at least


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Aligned:
    """Values of both at the steps that both have."""

    steps: Steps
    baseline: Values
    candidate: Values
    notes: tuple[str, ...] = ()
    is_mixed: bool = False  # a mean over an interval on one side against a single step on the other

    def finite(self) -> Aligned:
        """Return only the steps where both values are finite."""
        kept = is_number(self.baseline) & is_number(self.candidate)
        return Aligned(
            steps=self.steps[kept], baseline=self.baseline[kept], candidate=self.candidate[kept], notes=self.notes,
            is_mixed=self.is_mixed,
        )  # fmt: skip


def align(baseline: Series, candidate: Series, *, offset: int = 0) -> Aligned:
    """Pair two series by step.

    Where one is logged less often and as the mean over its interval, the other is averaged over the same steps; else
    only steps that both have are paired.

    Args:
        offset: added to the candidate's steps.
    """
    other = candidate.steps + offset
    if baseline.is_mean and baseline.interval > candidate.interval:
        steps, kept, means = _means(baseline.steps, other, candidate)
        return Aligned(steps=steps, baseline=baseline.values[kept], candidate=means, notes=(_note("candidate"),))
    if candidate.is_mean and candidate.interval > baseline.interval:
        steps, kept, means = _means(other, baseline.steps, baseline)
        return Aligned(steps=steps, baseline=means, candidate=candidate.values[kept], notes=(_note("baseline"),))
    steps, left, right = np.intersect1d(baseline.steps, other, assume_unique=True, return_indices=True)
    sides = {s.is_mean and s.interval > 1 for s in (baseline, candidate)}
    is_mixed = len(sides) > 1 and len(steps) > 0
    note = "one log prints the mean over an interval, the other single steps: their difference holds the batches' noise"
    return Aligned(
        steps=steps, baseline=baseline.values[left], candidate=candidate.values[right], is_mixed=is_mixed,
        notes=(note,) if is_mixed else (),
    )  # fmt: skip


def _note(side: str) -> str:
    return f"the {side}'s steps were averaged over the other log's intervals"


def _means(coarse: Steps, fine: Steps, series: Series) -> tuple[Steps, Steps, Values]:
    """Return (steps, indices among the coarse, means of the fine over (step before, step]) where enough are there."""
    if not len(coarse) or not len(fine):
        return coarse[:0], np.zeros(0, dtype=np.int64), np.zeros(0)
    interval = max(1, int(np.median(np.diff(coarse)))) if len(coarse) > 1 else 1
    before = np.concatenate(([coarse[0] - interval], coarse[:-1]))
    first, last = np.searchsorted(fine, before, "right"), np.searchsorted(fine, coarse, "right")
    total = np.concatenate(([0.0], np.cumsum(np.where(is_number(series.values), series.values, 0.0))))
    bad = np.concatenate(([0], np.cumsum(~is_number(series.values))))
    counts = last - first
    enough = counts * series.interval >= _COVERED * (coarse - before)
    means = (total[last] - total[first]) / np.maximum(counts, 1)
    means[bad[last] > bad[first]] = np.nan
    kept = np.flatnonzero(enough & (counts > 0))
    return coarse[kept], kept, means[kept]


def origin(curve: Curve) -> int:
    """Return what to take off the steps of a log whose kind does not say whether it counts from 0 or 1.

    1 if its first step is its interval (1, 2, 3 … or 10, 20, 30 …), else 0.
    """
    series = curve.series.get("loss")
    if curve.counts_from is not None or series is None or len(series.steps) < 2:
        return 0
    first = min(int(s.steps[0]) for s in curve.series.values() if len(s.steps))
    return 1 if first > 0 and int(series.steps[0]) == series.interval else 0


def better_lag(baseline: Series, candidate: Series, offset: int) -> int | None:
    """Return by how many steps the candidate must be shifted to fit at least twice as well; None if no shift does.

    The changes from step to step are compared, so that a difference that stays the same does not matter.
    """
    found: dict[int, float] = {}
    for lag in _LAGS:
        pair = align(baseline, candidate, offset=offset + lag).finite()
        if len(pair.steps) < _LAG_POINTS:
            return None
        left, right = np.diff(pair.baseline), np.diff(pair.candidate)
        found[lag] = float(np.sqrt(np.mean((left - right) ** 2)))
    best = min(found, key=lambda lag: found[lag])
    return best if best != 0 and found[best] < _DECISIVE * found[0] else None
