"""The first step from which two curves are apart, beyond the noise, and stay so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.curve import Values
from hypocenter.compare.curves.statistics import change_point, level_of, running_mean

_PARTS = 50  # windows in a whole curve
_SHORTEST, _LONGEST = 5, 100  # points of a window
_SUSTAINED = 2  # windows that a difference has to last
_MEMORIES = 3.0  # ... and times the noise's memory, because an excursion of noise lasts about one
_LONGEST_WAIT = 3  # ... but no more than this part of the curve

_HELD = 0.5  # of the floor: a departure is over when the mean has fallen below


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Indices of aligned points between which the difference is beyond the floor."""

    begins: int
    seen: int
    ends: int
    gap: float
    floor: float


def window_for(n_points: int) -> int:
    """Points of which the mean is taken: a fiftieth of the curve, 5 to 100.

    A step of the difference by g noise floors is seen at the latest 1/g of a window after it, and told once it has
    lasted two windows.
    """
    return min(max(n_points // _PARTS, _SHORTEST), _LONGEST)


def lasting_for(n_points: int, window: int, memory: float) -> int:
    """Points for which a difference has to last before it is one: two windows, and three times the noise's memory."""
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
    """The first stretch of at least `lasting` points whose running mean is beyond the floor, on one side of zero.

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
    """The best split of what lies around the first window beyond the floor."""
    low = max(0, start - window)
    if start == 0:
        return 0  # apart from the first window on
    return min(low + change_point(difference[low : seen + window]), seen)
