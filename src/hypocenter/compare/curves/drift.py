"""The end of a long run: is the candidate apart there, by how much, and does it grow?"""

from __future__ import annotations

import numpy as np

from hypocenter.compare.curves.comparison import Late
from hypocenter.compare.curves.curve import Steps, Values
from hypocenter.compare.curves.noise import Noise, filled
from hypocenter.compare.curves.statistics import mean_of, slope_of, t_quantile

_PERSISTENT = 3.0  # times the largest gap that a repeat of the baseline has there
_CAUTION = 3.0  # times more for a floor that was not measured


def late_of(steps: Steps, baseline: Values, difference: Values) -> Late:
    """Gap and slope of the last third and gap of the last tenth, with errors that allow for autocorrelation."""
    n = len(steps)
    third, tenth = slice(n - max(n // 3, 1), n), slice(n - max(n // 10, 1), n)
    gap, slope = mean_of(difference[third]), slope_of(steps[third].astype(np.float64), difference[third])
    end, level = float(difference[tenth].mean()), float(np.abs(baseline[tenth]).mean())
    return Late(
        gap=gap.value, gap_error=gap.error, slope=1000 * slope.value, slope_error=1000 * slope.error, end_gap=end,
        end_share=abs(end) / level if level > 0 else 0.0, n_effective=gap.n_effective,
    )  # fmt: skip


def late_floor(late: Late, noise: Noise, chance: float) -> float:
    """What the gap of the last third stays below if there is only noise.

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
    """Whether the difference grows away from zero over the last third."""
    limit = t_quantile(chance, late.n_effective - 2) * late.slope_error
    return abs(late.slope) > limit and late.slope * late.end_gap > 0
