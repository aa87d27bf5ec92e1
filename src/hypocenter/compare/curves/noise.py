"""How far two good runs are apart: measured on repeats of the baseline, else guessed from its own unrest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.comparison import Late, NoiseSource
from hypocenter.compare.curves.curve import Steps, Values
from hypocenter.compare.curves.statistics import (
    Estimate,
    mean_of,
    memory_of,
    running_mean,
    running_median,
    slope_of,
    t_quantile,
)

_NEIGHBOURHOOD = 0.25  # of all steps, to each side: where the noise is taken to be of one size
_TREND = 1 / 3  # of all steps: the window over which a single curve is smoothed to see its unrest
_TWICING = 2  # times that the smoothing is applied to what it left
_CAUTION = 3.0  # a floor that was not measured counts three times: what is slow was taken for trend
_EXACT = 1e-7  # relative; below it a difference is float32's rounding
_PERSISTENT = 3.0  # times the largest gap that a repeat of the baseline has there
ENOUGH = 8.0  # independent values from which a lean can be told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """Differences that mean nothing, at the aligned steps: samples of the noise."""

    source: NoiseSource
    samples: tuple[Values, ...]  # differences of good runs from the baseline, at all aligned steps, NaN where missing
    least: Values  # differences that print and rounding make at a step


def measured(repeats: list[Values], least: Values) -> Noise | None:
    """Return the noise of repeats: their differences from the baseline. None if they are too short or identical."""
    usable = [one for one in repeats if _tells(one)]
    return Noise(source="repeats", samples=tuple(usable), least=least) if usable else None


def within(baseline: Values, least: Values) -> Noise:
    """Guess the noise from one curve: what stays when its trend is taken off, as if both runs had seen other batches.

    Two runs that see the same batches are closer than that, so it is a coarse sieve; but no proof of equality either.
    """
    window = max(5, int(len(baseline) * _TREND)) | 1
    unrest = baseline - running_median(baseline, window)
    for _ in range(_TWICING):  # what is left of the trend's curvature (Tukey's twicing)
        unrest = unrest - running_median(unrest, window)
    return Noise(source="within-curve", samples=(np.sqrt(2.0) * unrest,), least=least)


def _tells(difference: Values) -> bool:
    finite = difference[np.isfinite(difference)]
    return len(finite) >= max(8, len(difference) // 2) and bool(np.any(finite != 0.0))


def floor_of(noise: Noise, window: int, chance: float) -> Values:
    """Return, for each step that ends a window, what the mean of `window` differences stays below if it is only noise.

    Student's t with the root mean square of the noise's own window means in the neighbourhood, and as many degrees of
    freedom as there are independent windows: a single short repeat gives a floor far above itself, honestly.
    """
    n = len(noise.least)
    half = max(window, int(n * _NEIGHBOURHOOD))
    squares, freedom = np.zeros(n - window + 1), np.zeros(n - window + 1)
    for sample in noise.samples:
        means = running_mean(_filled(sample), window)
        ends = np.arange(len(means))
        low, high = np.maximum(ends - half, 0), np.minimum(ends + half + 1, len(means))
        total = np.cumsum(np.concatenate(([0.0], means**2)))
        squares += (total[high] - total[low]) / (high - low)
        freedom += np.maximum((high - low + window - 1) / max(window, memory_of(_filled(sample))), 1.0)
    spread = np.sqrt(squares / len(noise.samples))
    caution = _CAUTION if noise.source == "within-curve" else 1.0
    factors = {k: t_quantile(chance, float(k)) for k in np.unique(np.round(freedom))}
    factor = np.array([factors[k] for k in np.round(freedom)])
    return caution * factor * spread + running_mean(noise.least, window)


def least_difference(size: Values, quanta: float) -> Values:
    """Return by how much printing (half a last decimal on each side) and float32 may make equal values differ.

    Args:
        size: of the values; 1 where they are compared by their logarithms.
        quanta: units of the last decimal.
    """
    return quanta + _EXACT * size


def _filled(sample: Values) -> Values:
    """Return the sample with its missing steps interpolated."""
    missing = ~np.isfinite(sample)
    if not missing.any():
        return sample
    at = np.arange(len(sample))
    return np.interp(at, at[~missing], sample[~missing])


def memory(noise: Noise) -> float:
    """Return after how many steps the noise has forgotten: the longest autocorrelation time of the samples."""
    return max(memory_of(sample) for sample in filled(noise))


def filled(noise: Noise) -> tuple[Values, ...]:
    """Return the samples with their missing steps interpolated."""
    return tuple(_filled(sample) for sample in noise.samples)


def late_of(steps: Steps, baseline: Values, difference: Values) -> Late:
    """Return gap and slope of the last third and gap of the last tenth; errors allow for autocorrelation."""
    n = len(steps)
    third, tenth = slice(n - max(n // 3, 1), n), slice(n - max(n // 10, 1), n)
    gap, slope = mean_of(difference[third]), slope_of(steps[third].astype(np.float64), difference[third])
    end, level = float(difference[tenth].mean()), float(np.abs(baseline[tenth]).mean())
    return Late(
        gap=gap.value, gap_error=gap.error, slope=1000 * slope.value, slope_error=1000 * slope.error, end_gap=end,
        end_share=abs(end) / level if level > 0 else 0.0, n_effective=gap.n_effective,
    )  # fmt: skip


def late_floor(late: Late, noise: Noise, chance: float) -> float:
    """Return what the gap of the last third stays below if there is only noise.

    The error of the gap and that of the same third of the noise, by Student's t with the fewer effective values; and at
    least three times the largest gap of any repeat there, because noise of chaotic runs does not average out.
    """
    thirds = [sample[len(sample) - max(len(sample) // 3, 1) :] for sample in filled(noise)]
    means = [mean_of(third) for third in thirds]
    error = float(np.sqrt(late.gap_error**2 + np.mean([m.error**2 for m in means])))
    effective = min(late.n_effective, max(m.n_effective for m in means))
    random = t_quantile(chance, effective - 1) * error
    if noise.source == "within-curve":
        return _CAUTION * random
    return max(random, _PERSISTENT * max(abs(m.value) for m in means)) + float(noise.least.mean())


def grows(late: Late, chance: float) -> bool:
    """Return whether the difference grows away from zero over the last third."""
    limit = t_quantile(chance, late.n_effective - 2) * late.slope_error
    return abs(late.slope) > limit and late.slope * late.end_gap > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """On which side of zero the differences are."""

    mean: Estimate
    share_above: float  # of the differences that are not 0
    lean: float  # standard errors by which that share is off one half; autocorrelation of the signs allowed for
    n_effective: float  # independent signs
    n_crossings: int


def swing_of(difference: Values) -> Swing:
    """Return mean and signs of a difference: whether it swings around zero.

    Sign test (a binomial share of one half) with n / tau in place of n, tau being the autocorrelation time of the
    signs: neighbours are not independent. With fewer than eight independent signs nothing can be said.
    """
    signs = np.sign(difference[difference != 0.0])
    n = len(signs)
    effective = n / memory_of(signs) if n else 0.0
    share = float((signs > 0).mean()) if n else 0.5
    if n and abs(signs.sum()) == n:  # all on one side: the signs' own memory cannot be seen, the values' can
        effective = n / memory_of(difference)
    crossings = int((np.diff(signs) != 0).sum()) if n else 0
    return Swing(
        mean=mean_of(difference), share_above=share, lean=(2 * share - 1) * float(np.sqrt(effective)),
        n_effective=effective, n_crossings=crossings,
    )  # fmt: skip
