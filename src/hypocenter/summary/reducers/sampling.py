"""What every framework's reducer does alike: which elements are the sample, and a Summary out of moments and sample.

A tensor of at most SMALL elements is looked at whole. Of a larger one the sample is RUNS short runs, evenly spread:
run i begins at element i * ((n - RUN_LENGTH) // (RUNS - 1)).
"""

from __future__ import annotations

from typing import NamedTuple

from hypocenter.nouns import Summary
from hypocenter.summary.exponents import Tallies, n_below

RUNS, RUN_LENGTH = 64, 8  # a run lies in one or two cache lines: lone elements cost three times as much
SIZE = RUNS * RUN_LENGTH  # elements: the standard error of a fraction is at most 1/(2 sqrt(512)), 2 per cent
SMALL = 1024  # elements: from here on four reductions cost less than counting all


class Moments(NamedTuple):
    """Extremes and sums of the finite values, and how many are not; `low` is above `high` when none is finite."""

    low: float
    high: float
    total: float
    squares: float
    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0


def run_stride(n: int) -> int:
    """Return how many elements lie between the beginnings of two runs, in a row of n > SIZE elements."""
    return (n - RUN_LENGTH) // (RUNS - 1)


def assembled(n: int, n_hist: int, smallest_normal: int, moments: Moments, tallies: Tallies, i: int = 0) -> Summary:
    """Put together a Summary from moments and the i-th counted sample."""
    low, high = moments.low, moments.high
    first, counts = tallies.first[i], tallies.counts[i]
    has_finite = low <= high
    return Summary(
        n=n, n_nan=moments.n_nan, n_posinf=moments.n_posinf, n_neginf=moments.n_neginf, n_hist=n_hist,
        n_zero=tallies.n_zero[i], n_subnormal=n_below(smallest_normal, first, counts),
        min=low + 0.0 if has_finite else None, max=high + 0.0 if has_finite else None, absmin=tallies.absmin[i],
        absmax=max(-low, high) + 0.0 if has_finite else 0.0, sum=moments.total, sumsq=moments.squares,
        hist_first=first, hist=counts,
    )  # fmt: skip
