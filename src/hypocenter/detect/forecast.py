"""When will a growing |max| pass the largest number of its format? An interval, or nothing where evidence is thin.

The slope is Theil's and Sen's: the median of the slopes between all pairs of points, which a quarter of wild points
does not move. Its confidence interval is Sen's (1968, Journal of the American Statistical Association 63, 1379-1389):
of the N sorted slopes those at (N - C) / 2 and (N + C) / 2, where C = z sqrt(n (n - 1) (2 n + 5) / 18) comes from
Kendall's tau. Neighbouring steps resemble each other, so C is widened by sqrt((1 + r) / (1 - r)), r being the
autocorrelation of the residuals at lag 1 (Bayley and Hammersley 1946, the effective number of observations).

How growth goes on is not known. The near end takes it to be exponential, which is what instability is, and faster where
it has been accelerating; the far end takes it to be linear in |max|, as weights grow under a constant learning rate.
Powers of the step lie between the two. Slower growth than linear may end anywhere, and is not forecast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

Point = tuple[int, float]  # step, log2 of |max|
MIN_POINTS = 24  # in the shortest stretch that is looked at
MOST_POINTS = 128  # of a stretch; more are thinned: all pairs are compared
MIN_BITS = 1.0  # growth that a stretch must show: a factor of two
MIN_SIGNAL = 4.0  # growth over the scatter around it
N_BLOCKS = 4  # parts of a stretch that must each be higher than the one before
N_FINE, MIN_T = 8, 4.0  # parts whose rises must be alike: mean over standard error; a random walk's are not
MIN_SHARE, MAX_SHARE = 0.1, 0.7  # of the growth that lies between two neighbouring blocks: no plateau, no jump
MIN_LINEARITY = 0.75  # slope of |max| itself in the later half over that in the earlier one: below it, growth ends
MOST_BITS = 1000.0  # 2**1000 steps are far enough, and still a float
Z = 1.96  # two-sided 95 % of the normal distribution
SCATTER = 1.4826  # median absolute deviation to standard deviation, of the normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Overflow between `near_steps` and `far_steps` after `step`, about `likely_steps` after it."""

    step: int  # the last one observed
    near_steps: float
    likely_steps: float
    far_steps: float
    since_step: int  # the growth that it rests on
    n_points: int
    doubling_steps: float  # at the present pace

    @property
    def span_steps(self) -> int:
        """The length of the growth that was observed, in steps."""
        return self.step - self.since_step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trend:
    """Theil's and Sen's line through points: bits a step, with its interval, and the residuals around it."""

    slope: float
    low: float
    high: float
    level: float  # of the line at the last step
    residuals: tuple[float, ...]

    @property
    def scatter(self) -> float:
        return SCATTER * median(abs(r) for r in self.residuals)


def forecast(points: Sequence[Point], log2_limit: float) -> Forecast | None:
    """Extrapolate the growth of one site to its format's limit.

    Args:
        points: (step, log2 |max|), in any order; steps need not be evenly spaced.
        log2_limit: of the largest number of the format.

    Returns:
        None unless the latest stretch rises steadily to a level never seen before, and has not begun to slow down.
    """
    ordered = sorted(dict(sorted(points)).items())
    if len(ordered) < MIN_POINTS or ordered[-1][1] >= log2_limit:
        return None
    for part in (1, 2, 4, 8):
        n = len(ordered) // part
        if n < MIN_POINTS:
            return None
        found = _of_stretch(ordered[-n:], ordered[:-n], log2_limit)
        if found is not None:
            return found
    return None


def _of_stretch(stretch: Sequence[Point], before: Sequence[Point], log2_limit: float) -> Forecast | None:
    stretch = _thinned(stretch)
    if not _rises_steadily(stretch, before):
        return None
    half, unit = len(stretch) // 2, stretch[-1][1]
    earlier, later = _trend(stretch[:half]), _trend(stretch[half:])
    values = [(x, 2.0 ** (y - unit)) for x, y in stretch]  # in units of the last one, so that nothing overflows
    value = _trend(values[half:])
    linearity = min(_ratio(_trend(values[:half]), value), _ratio(*map(_trend, _blocks(values[half:], 2))))
    if later.low <= 0.0 or value.low <= 0.0 or linearity < MIN_LINEARITY:
        return None
    gap = min(log2_limit - later.level, MOST_BITS)
    soonest = max(0.0, gap - max(later.residuals))
    near = soonest / later.high
    if later.slope > earlier.slope > 0.0:
        near = min(near, _accelerating(soonest, earlier, later, stretch))
    rest = max(0.0, 2.0 ** min(log2_limit - unit, MOST_BITS) - value.level + value.scatter)
    far = max(near, math.ceil(rest / value.low / min(1.0, linearity) ** 2))  # a step is whole
    slowing = min(1.0, later.slope / earlier.slope) if earlier.slope > 0.0 else 1.0
    pace = later.slope * math.sqrt(slowing)  # at the last step, a quarter of the stretch after the later half's middle
    return Forecast(
        step=stretch[-1][0],
        near_steps=near,
        likely_steps=min(max(gap / pace, near), far),
        far_steps=far,
        since_step=stretch[0][0],
        n_points=len(stretch),
        doubling_steps=1.0 / pace,
    )


def _trend(points: Sequence[Point]) -> _Trend:
    """Fit the line of Theil and Sen with its 95 % interval, through points at two or more different steps."""
    slopes = sorted((yb - ya) / (xb - xa) for i, (xa, ya) in enumerate(points) for xb, yb in points[i + 1 :])
    slope, last = median(slopes), points[-1][0]
    level = median(y + slope * (last - x) for x, y in points)
    residuals = tuple(y - (level - slope * (last - x)) for x, y in points)
    n, r = len(points), _autocorrelation(residuals)
    width = Z * math.sqrt(n * (n - 1) * (2 * n + 5) / 18.0 * (1.0 + r) / (1.0 - r))
    below, above = math.floor((len(slopes) - width) / 2.0), math.ceil((len(slopes) + width) / 2.0)
    low = slopes[below] if below >= 0 else -math.inf
    high = slopes[above] if above < len(slopes) else slopes[-1]
    return _Trend(slope=slope, low=low, high=high, level=level, residuals=residuals)


def _rises_steadily(stretch: Sequence[Point], before: Sequence[Point]) -> bool:
    """Return whether each part is higher than the one before, all by a share of the growth, and above all history."""
    blocks = _blocks(stretch, N_BLOCKS)
    levels = [median(y for _, y in block) for block in blocks]
    growth = levels[-1] - levels[0]
    if growth <= 0.0 or not all(MIN_SHARE <= (b - a) / growth <= MAX_SHARE for a, b in pairwise(levels)):
        return False
    if before and levels[-1] <= max(y for _, y in before):
        return False
    fine = [median(y for _, y in block) for block in _blocks(stretch, N_FINE)]
    if not (_rises_alike(fine) or _rises_alike([2.0 ** (y - fine[-1]) for y in fine])):
        return False
    total = growth * N_BLOCKS / (N_BLOCKS - 1)  # medians leave out half a block at either end
    scatter = max(_trend(block).scatter for block in blocks)
    return total >= MIN_BITS and total >= MIN_SIGNAL * scatter and max(_jumps(stretch)) <= max(0.5 * total, 2 * scatter)


def _blocks(stretch: Sequence[Point], n: int) -> list[Sequence[Point]]:
    edges = [round(i * len(stretch) / n) for i in range(n + 1)]
    return [stretch[a:b] for a, b in pairwise(edges)]


def _ratio(earlier: _Trend, later: _Trend) -> float:
    return later.slope / max(earlier.slope, 1e-300)


def _rises_alike(levels: Sequence[float]) -> bool:
    rises = [b - a for a, b in pairwise(levels)]
    return fmean(rises) >= MIN_T * stdev(rises) / math.sqrt(len(rises))


def _jumps(stretch: Sequence[Point]) -> list[float]:
    return [b - a for (_, a), (_, b) in pairwise(stretch)]


def _accelerating(gap: float, earlier: _Trend, later: _Trend, stretch: Sequence[Point]) -> float:
    """Return the steps to the limit if the slope keeps growing as between the halves: s k + a k² / 2 = gap."""
    span = stretch[-1][0] - stretch[0][0]
    acceleration = (later.high - earlier.slope) / (span / 2.0)
    slope = later.high + acceleration * span / 4.0
    return 2.0 * gap / (slope + math.sqrt(slope * slope + 2.0 * acceleration * gap))


def _autocorrelation(residuals: Sequence[float]) -> float:
    """Return the autocorrelation at lag 1, never below 0 (which would narrow the interval) nor above 0.9."""
    power = sum(r * r for r in residuals)
    if power <= 0.0:
        return 0.0
    return min(0.9, max(0.0, sum(a * b for a, b in pairwise(residuals)) / power))


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most MOST_POINTS, the last one included: of each group the highest, which would overflow first."""
    if len(points) <= MOST_POINTS:
        return points
    edges = [round(i * len(points) / MOST_POINTS) for i in range(MOST_POINTS + 1)]
    return [max(points[a:b], key=lambda p: p[1]) for a, b in pairwise(edges)]
