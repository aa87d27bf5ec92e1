"""Whether a magnitude grew over the recorded steps: "|max| had doubled every 26 steps since step 180"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypocenter.diagnose.numbers import short

MIN_POINTS = 4  # fewer make a line through anything
MIN_BITS = 1.0  # growth below a factor of two is not worth a sentence
MIN_R2 = 0.8  # share of the variance of log2|max| that a straight line must explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Exponential growth of |max|: it doubles every `doubling_steps` since `since_step`."""

    since_step: int
    doubling_steps: float
    bits: float  # log2 of the total growth

    def sentence(self) -> str:
        """The growth in words."""
        pace = f"every {self.doubling_steps:.0f} steps" if self.doubling_steps >= 1.5 else "every step"
        return f"|max| had doubled {pace} since step {self.since_step}"


def growth(history: Sequence[tuple[int, float]]) -> Growth | None:
    """Fit log2|max| over steps from its last minimum on; None unless the growth is real."""
    points = [(step, math.log2(value)) for step, value in sorted(history) if 0 < value < math.inf]
    if len(points) < MIN_POINTS:
        return None
    low = min(range(len(points)), key=lambda i: (points[i][1], -i))
    tail = points[low:]
    if len(tail) < MIN_POINTS or tail[-1][1] - tail[0][1] < MIN_BITS:
        return None
    slope, r2 = _line(tail)
    if slope <= 0 or r2 < MIN_R2:
        return None
    return Growth(since_step=tail[0][0], doubling_steps=1 / slope, bits=tail[-1][1] - tail[0][1])


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    n = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    sxx = sum((x - mean_x) ** 2 for x, _ in points)
    syy = sum((y - mean_y) ** 2 for _, y in points)
    sxy = sum((x - mean_x) * (y - mean_y) for x, y in points)
    if sxx == 0 or syy == 0:
        return 0.0, 0.0
    return sxy / sxx, sxy * sxy / (sxx * syy)


LOSS_FACTOR = 1024.0  # no healthy run loses so much of what it had learned


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGrowth:
    """The loss just before, against the smallest one until then."""

    smallest: tuple[int, float]  # step, loss
    last: tuple[int, float]

    def sentence(self) -> str:
        """The growth in words."""
        (step, low), (last, high) = self.smallest, self.last
        return f"the loss had grown from {short(low)} at step {step} to {short(high)} at step {last}"


def loss_growth(losses: Sequence[tuple[int, float]]) -> LossGrowth | None:
    """Whether the last losses before a failure had run away: training diverged; None unless by LOSS_FACTOR."""
    known = [(step, abs(loss)) for step, loss in losses if math.isfinite(loss) and loss != 0.0]
    if len(known) < 2:
        return None
    smallest, last = min(known, key=lambda point: point[1]), known[-1]
    return LossGrowth(smallest=smallest, last=last) if last[1] >= LOSS_FACTOR * max(smallest[1], 1e-3) else None
