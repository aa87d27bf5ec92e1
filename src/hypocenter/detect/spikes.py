"""When a loss or a norm jumps: one number of a run against its own past, in octaves.

Nothing is tuned to a model: a value jumps when it lies above what was usual by much more than the usual spread, by
much more than any value before did, and by more than such values come to by chance. So a series with a heavy tail, in
which large values are usual, jumps rarely; one that rises or falls slowly never does. A level that stays is a jump
once, and is usual then.

By chance: how far the tops of excursions lie above a threshold has, far out, the distribution that their own past tells
(peaks over threshold: Pickands, Annals of Statistics 3, 1975; in octaves that of a power law is exponential). Its scale
comes from the median of the last ones, which a few jumps do not move, and with their rate it gives the height that is
reached once in CHANCE values.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

WINDOW = 32  # values that tell what is usual
LEAST = 8  # of them are needed
RECENT = 8  # of the last of them tell it where a series rises
OCTAVES = 1.0  # a jump is at least this large: a factor of 2
SPREADS = 6.0  # times the usual distance from the usual
RECORDS = 1.5  # times the second largest distance so far: what happened twice is usual, what happened once is not
CHANCE = 10_000  # values in which one may be a jump by chance alone
_FADES = 0.9995  # of these distances, from one value to the next: half of it is forgotten in 1,400
_REMEMBERED = 2_000  # values, 1 / (1 - _FADES): those that a count which fades so is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A value far above what was usual."""

    value: float
    usual: float  # median of the values before it, as a magnitude
    limit: float  # above it a value is a jump
    began: float = 0.0  # median of the first values of the run, as a magnitude; 0.0: not known
    before: float = 0.0  # the largest that ever rose above what was usual, as a magnitude
    few: float = 1.0  # times as many octaves are asked for: little was known yet

    @property
    def octaves(self) -> float:
        """How far the value is above the usual, as base-2 logarithm of the factor."""
        return math.log2(abs(self.value) / self.usual)

    @property
    def within(self) -> float:
        """The largest value that the run has survived before, as a magnitude; 0.0 if none was as large.

        The run began with one, those of a model that knew nothing, or it jumped as high before: a heavy tail comes to
        a new record again and again, half of them by less than half an octave.
        """
        if abs(self.value) <= self.began:
            return self.began
        return self.before if abs(self.value) <= self.before * 2.0 ** (OCTAVES / 2) else 0.0


class Series:
    """Follow a number over steps, to find jumps."""

    __slots__ = (
        "_began", "_counts", "_high", "_largest", "_n", "_past", "_peak", "_peak_before", "_quiet", "_second", "_tops",
        "_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self._past: deque[float] = deque(maxlen=WINDOW)  # log2 of magnitudes
        self._largest = self._second = 0.0  # octaves above the usual, faded; values in a row count once
        self._high: float | None = None  # values are above the usual: where the last jump among them came to, or -inf
        self._tops = deque[float](maxlen=WINDOW)  # of excursions, octaves above their threshold
        self._n = 0.0  # excursions, a faded count
        self._began = self._peak = self._peak_before = 0.0  # magnitudes; tops of this excursion, and of those before
        self._counts: deque[int] | None = None  # of terms, where they are told
        self._quiet, self._until = -math.inf, 0  # below it nothing is looked at, in so many more values

    def add(self, value: float | None, n_terms: int = 0) -> Jump | None:
        """Take in the next value; return a jump if it is the first of several in a row, or twice as far above.

        Args:
            value: of any sign; None, 0 and what is not finite are passed over.
            n_terms: whose mean it is. Where they are fewer than usual, it jumps only if their sum does too: the program
                may have divided each by their usual number.
        """
        magnitude = abs(value or 0.0)
        if not 0.0 < magnitude < math.inf:
            return None
        past, in_past = self._past, math.log2(magnitude)
        height = in_past if n_terms < 1 else in_past + self._octaves_of_sum(n_terms)
        self._until -= 1
        jump = None
        if self._until < 0 or height > self._quiet:
            if len(past) >= LEAST:
                self._began = self._began or 2.0 ** _median(past)
                usual = max(_median(past), _median(list(past)[-RECENT:]))
                jump = self._looked_at(value or 0.0, height, usual)
                self._quiet = usual + OCTAVES / 2
            fade = _FADES ** (RECENT - self._until)
            self._largest, self._second, self._n = self._largest * fade, self._second * fade, self._n * fade
            self._until = RECENT
        elif self._high is not None:
            self._high = None
        past.append(in_past)
        return jump

    def _octaves_of_sum(self, n_terms: int) -> float:
        """Return by how much a sum of so few terms, over their usual number, is less than their mean; 0 or below it."""
        self._counts = deque[int](maxlen=WINDOW) if self._counts is None else self._counts
        self._counts.append(n_terms)
        return min(0.0, math.log2(n_terms / _median(self._counts)))

    def _looked_at(self, value: float, height: float, usual: float) -> Jump | None:
        above, jump = height - usual, None
        excess = above - OCTAVES / 2
        if excess <= 0.0:
            self._high = None
            return None
        past = self._past
        apart = _median([abs(each - usual) for each in past])
        spread = min(apart, _median([abs(b - a) for a, b in itertools.pairwise(past)]))  # a trend has no spread
        few = (WINDOW / len(past)) ** 0.5  # where little is known yet, more is asked
        limit = max(OCTAVES * few, SPREADS * spread, RECORDS * self._second, self._by_chance())
        if self._high is None:
            self._second, self._high = max(self._second, min(self._largest, above)), -math.inf
            self._tops.append(excess)
            self._n += 1.0
            self._peak_before, self._peak = max(self._peak_before, self._peak), 0.0
        self._tops[-1], self._peak = max(self._tops[-1], excess), max(self._peak, abs(value))
        if above > limit and above > 2.0 * (self._high - usual):
            jump = Jump(
                value=value, usual=2.0**usual, limit=2.0 ** (usual + limit), began=self._began,
                before=self._peak_before, few=few,
            )  # fmt: skip
            self._high = height
        self._largest = max(self._largest, above)
        return jump

    def _by_chance(self) -> float:
        """Return how many octaves above the usual are reached once in CHANCE values; 0.0 if too little is known."""
        if len(self._tops) < LEAST:
            return 0.0
        scale = _median(self._tops) / math.log(2.0)
        return OCTAVES / 2 + scale * math.log(max(1.0, self._n * CHANCE / _REMEMBERED))


def _median(values: Collection[float]) -> float:
    """Return the middle value, of an even number the upper of two: fast, and good enough to compare octaves."""
    return sorted(values)[len(values) // 2]


def may_jump(values: NDArray[np.float64]) -> bool:
    """Return whether a Series that is given these values in turn may find a jump; False if it certainly finds none.

    A jump lies more than OCTAVES above what is usual, whatever else is asked of it.
    """
    magnitudes = np.abs(values)
    heights = np.log2(magnitudes[(magnitudes > 0.0) & (magnitudes < np.inf)])
    if len(heights) <= LEAST or np.ptp(heights) <= OCTAVES:
        return False
    for at in range(LEAST, min(WINDOW, len(heights))):
        past = heights[:at].tolist()
        if heights[at] - max(_median(past), _median(past[-RECENT:])) > OCTAVES:
            return True
    if len(heights) <= WINDOW:
        return False
    past = sliding_window_view(heights, WINDOW)[:-1]
    suspects = np.flatnonzero(heights[WINDOW:] - past.min(axis=1) > OCTAVES)
    usual = np.partition(past[suspects], WINDOW // 2, axis=1)[:, WINDOW // 2]
    return bool((heights[WINDOW + suspects] - usual > OCTAVES).any())
