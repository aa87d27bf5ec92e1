"""Everything the acceptance rules look at, computed once from two curves and the repeats of the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.align import Aligned, align
from hypocenter.compare.curves.comparison import Late, Limits, NoiseSource
from hypocenter.compare.curves.curve import Curve, Series, Values
from hypocenter.compare.curves.noise import (
    Noise,
    Swing,
    floor_of,
    late_floor,
    late_of,
    least_difference,
    measured,
    memory,
    swing_of,
    within,
)
from hypocenter.compare.curves.statistics import change_point, level_of, robust_spread, running_mean

FEWEST = 20  # aligned steps from which anything is said of a curve
MANY = 300  # aligned steps from which the baseline's own unrest tells its slow wandering well enough to go by
_OUTSTANDING = 8.0  # robust standard deviations
_GROSS_SHARE = 0.1  # of the loss; with fewer steps and no repeats only a difference beyond it is one
_PARTS = 50  # windows in a whole curve
_SHORTEST, _LONGEST = 5, 100  # points of a window
_SUSTAINED = 2  # windows that a difference has to last
_MEMORIES = 3.0  # ... and times the noise's memory, because an excursion of noise lasts about one
_LONGEST_WAIT = 3  # ... but no more than this part of the curve
_HELD = 0.5  # of the floor: a departure is over when the mean has fallen below


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """Of one quantity: the difference, its noise, and what was found in it. `pair` holds finite values only."""

    name: str
    whole: Aligned  # with what is not finite
    pair: Aligned
    difference: Values
    noise: Noise
    window: int
    lasting: int  # points for which a difference has to last before it is one
    floor: Values  # of running means; shorter than the difference by window - 1
    apart: Apart | None
    swing: Swing
    late: Late
    late_floor: float
    tolerance: Values  # differences that nobody minds, at each step
    sieve: Values  # differences that are none as long as the noise was not measured

    @property
    def source(self) -> NoiseSource:
        """Where the floor comes from."""
        return self.noise.source

    @property
    def typical_floor(self) -> float:
        """The median floor of a window's mean."""
        return float(np.median(self.floor))

    def percentile(self, percent: float) -> float:
        """Return the percentile of the absolute differences of the steps."""
        return float(np.percentile(np.abs(self.difference), percent))


def gather(
    name: str, baseline: Curve, candidate: Curve, noise: Sequence[Curve], limits: Limits, offset: int
) -> Evidence | None:
    """Gather the evidence about one quantity; None if not both have it at twenty steps. `grad_norm` is compared by
    its logarithm: a factor is a difference, and noise is proportional to it.
    """
    left, right = baseline.series.get(name), candidate.series.get(name)
    if left is None or right is None:
        return None
    whole = align(left, right, offset=offset)
    pair = _logarithms(whole.finite()) if name == "grad_norm" else whole.finite()
    if len(pair.steps) < FEWEST:
        return None
    difference = pair.candidate - pair.baseline
    size = np.ones_like(pair.baseline) if name == "grad_norm" else np.abs(pair.baseline)  # of a logarithm it is 1
    least = least_difference(size, _print(left, right, pair))
    rounding = limits.grad_norm_rounding if name == "grad_norm" else limits.rounding if name == "loss" else 0.0
    least = np.maximum(least, rounding * size)
    samples = [_sample(left, curve.series[name], right, pair, offset) for curve in noise if name in curve.series]
    known = measured(samples, least) or within(pair.baseline, least)
    window = window_for(len(pair.steps))
    floor = floor_of(known, window, limits.chance)
    lasting = lasting_for(len(pair.steps), window, memory(known))
    guessed = known.source != "repeats"
    tolerance = _tolerance(name, pair.baseline, limits)
    sieve = tolerance
    if len(pair.steps) < MANY:
        gross = np.full(len(tolerance), np.log(2.0)) if name == "grad_norm" else _GROSS_SHARE * np.abs(pair.baseline)
        sieve = np.maximum(tolerance, gross)
    late = late_of(pair.steps, pair.baseline, difference)
    return Evidence(
        name=name, whole=whole, pair=pair, difference=difference, noise=known, window=window, lasting=lasting,
        floor=floor,
        apart=first_apart(
            difference, floor, window, lasting, tolerance=sieve if guessed else None,
            chance=limits.chance if guessed else None,
        ),
        swing=swing_of(_without_spikes(difference, tolerance)),
        late=late,        late_floor=late_floor(late, known, limits.chance), tolerance=tolerance,
        sieve=sieve,
    )  # fmt: skip


def _without_spikes(difference: Values, tolerance: Values) -> Values:
    """Return the difference with outliers cut down: one spike must not decide on which side of zero a run is."""
    most = np.maximum(tolerance, _OUTSTANDING * robust_spread(difference))
    return np.clip(difference, -most, most)


def _logarithms(pair: Aligned) -> Aligned:
    kept = (pair.baseline > 0) & (pair.candidate > 0)
    return Aligned(
        steps=pair.steps[kept], baseline=np.log(pair.baseline[kept]), candidate=np.log(pair.candidate[kept]),
        notes=pair.notes, is_mixed=pair.is_mixed,
    )  # fmt: skip


def _print(left: Series, right: Series, pair: Aligned) -> float:
    quantum = max(left.quantum, right.quantum)
    if left.name != "grad_norm":
        return quantum
    return quantum / max(float(np.exp(np.median(pair.baseline))), quantum) if quantum else 0.0


def _tolerance(name: str, baseline: Values, limits: Limits) -> Values:
    """Return the absolute limit for losses of a language model, or a share of the loss where that is less."""
    if name == "grad_norm":
        return np.full(len(baseline), np.log1p(limits.grad_norm_share))
    return np.minimum(limits.loss, limits.end_share * np.abs(baseline))


def _sample(baseline: Series, repeat: Series, candidate: Series, pair: Aligned, offset: int) -> Values:
    """Return a repeat's difference from the baseline, put on the aligned steps just as the baseline was."""
    both = align(baseline, repeat).finite()
    if baseline.name == "grad_norm":
        both = _logarithms(both)
    apart = Series(
        name=baseline.name, steps=both.steps, values=both.candidate - both.baseline, is_mean=baseline.is_mean
    )
    out = np.full(len(pair.steps), np.nan)
    if len(apart.steps) == 0:
        return out
    moved = align(apart, candidate, offset=offset)
    _, at, of = np.intersect1d(pair.steps, moved.steps, assume_unique=True, return_indices=True)
    out[at] = moved.baseline[of]
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Indices of aligned points between which the difference is beyond the floor."""

    begins: int
    seen: int
    ends: int
    gap: float
    floor: float


def window_for(n_points: int) -> int:
    """Return how many points each running mean is taken over: a fiftieth of the curve, 5 to 100.

    A step of the difference by g noise floors is seen at the latest 1/g of a window after it, and told once it has
    lasted two windows.
    """
    return min(max(n_points // _PARTS, _SHORTEST), _LONGEST)


def lasting_for(n_points: int, window: int, memory: float) -> int:
    """Return how many points a difference must last to count: two windows, and three times the noise's memory."""
    return max(_SUSTAINED * window, min(int(_MEMORIES * memory), n_points // _LONGEST_WAIT))


def first_apart(
    difference: Values,
    floor: Values,
    window: int,
    lasting: int,
    *,
    tolerance: Values | None = None,
    chance: float | None = None,
) -> Apart | None:
    """Find the first `lasting` points or more whose running mean is beyond the floor, on one side of zero.

    Args:
        difference: candidate minus baseline at the aligned steps.
        floor: of the running mean, as `noise.floor_of` gives it (shorter by window - 1).
        tolerance: differences below it do not count either.
        chance: if given, the stretch must also be told from zero by its own error, with this probability of being
            wrong: of a floor that was only guessed, the slow wandering of the noise is not known.
    """
    means = running_mean(difference, window)
    limit = floor if tolerance is None else np.maximum(floor, running_mean(tolerance, window))
    sign = np.where(means > limit, 1, np.where(means < -limit, -1, 0))
    edges: list[int] = (np.flatnonzero(np.diff(sign)) + 1).tolist()
    for start, stop in zip([0, *edges], [*edges, len(sign)], strict=True):
        if sign[start] and stop - start >= min(lasting, len(sign)):
            held = means[stop:] * sign[start] > _HELD * limit[stop:]
            stop += len(held) if held.all() else int(np.argmin(held))
            seen, ends = start + window - 1, stop + window - 2
            begins = _begin(difference, start, seen, window)
            level = level_of(difference[begins : ends + 1])
            if chance is None or abs(level.value) > level.beyond(chance):
                return Apart(begins=begins, seen=seen, ends=ends, gap=level.value, floor=float(limit[start]))
    return None


def _begin(difference: Values, start: int, seen: int, window: int) -> int:
    """Return where the difference begins: the best split of what lies around the first window beyond the floor."""
    low = max(0, start - window)
    if start == 0:
        return 0  # apart from the first window on
    return min(low + change_point(difference[low : seen + window]), seen)
