"""The monoid: `merge(summary(a), summary(b))` is the summary of both tensors' elements together."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from hypocenter.nouns import Summary

_LARGEST = sys.float_info.max


def merge(a: Summary, b: Summary) -> Summary:
    """Describe the elements of both together. Associative and commutative; `Summary()` changes nothing.

    Counts, extremes and histograms are exact. `sum` and `sumsq` are float64 sums, so another order of merging may
    change their last bits; they saturate at the largest float64 rather than become infinite. Sketches add up, as a
    sketch belongs to a shard's place in the logical tensor (hypocenter.summary.sketch); a side without one adds 0.
    """
    first, hist = _hist(a, b)
    return Summary(
        n=a.n + b.n,
        n_nan=a.n_nan + b.n_nan,
        n_posinf=a.n_posinf + b.n_posinf,
        n_neginf=a.n_neginf + b.n_neginf,
        n_hist=a.n_hist + b.n_hist,
        n_zero=a.n_zero + b.n_zero,
        n_subnormal=a.n_subnormal + b.n_subnormal,
        min=min(known(a.min, b.min), default=None),
        max=max(known(a.max, b.max), default=None),
        absmin=min(known(a.absmin, b.absmin), default=None),
        absmax=max(a.absmax, b.absmax),
        sum=saturated(a.sum + b.sum),
        sumsq=saturated(a.sumsq + b.sumsq),
        hist_first=first,
        hist=hist,
        sketch=_sketch(a.sketch, b.sketch),
    )


def merge_all(summaries: Iterable[Summary]) -> Summary:
    """Describe the elements of all together; `Summary()` for none."""
    total = Summary()
    for summary in summaries:
        total = merge(total, summary)
    return total


def known(*values: float | None) -> list[float]:
    """Return the values that are not None."""
    return [value for value in values if value is not None]


def saturated(value: float) -> float:
    """Hold a float64 sum inside the range of float64: infinity does not survive JSON, and inf - inf is NaN."""
    return min(max(value, -_LARGEST), _LARGEST)


def _hist(a: Summary, b: Summary) -> tuple[int, tuple[int, ...]]:
    if not a.hist or not b.hist:
        return (a.hist_first, a.hist) if a.hist else (b.hist_first, b.hist) if b.hist else (0, ())
    first = min(a.hist_first, b.hist_first)
    counts = [0] * (max(a.hist_first + len(a.hist), b.hist_first + len(b.hist)) - first)
    for one in (a, b):
        for index, count in enumerate(one.hist, one.hist_first - first):
            counts[index] += count
    return first, tuple(counts)


def _sketch(a: tuple[float, ...] | None, b: tuple[float, ...] | None) -> tuple[float, ...] | None:
    if a is None or b is None:
        return b if a is None else a
    return tuple(x + y for x, y in zip(a, b, strict=True))
