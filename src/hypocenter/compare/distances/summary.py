"""Depth summary: what norms, sums and extremes alone say. A lower bound of the relative error, never more.

For values a and b: | ‖b‖ - ‖a‖ | <= ‖b - a‖ (triangle), |sum(b) - sum(a)| <= sqrt(n) ‖b - a‖ (Cauchy and Schwarz), and
the extremes differ by no more than the largest element of b - a, which is at most ‖b - a‖.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.rows import Flags, Reals, StepRows

_SUMMED_ERROR = 2.0**-22  # float32 accumulation of a sum or a sum of squares may be off by this much of its magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Of each pair of rows what their summaries tell."""

    low: Reals  # ‖candidate - baseline‖ / ‖baseline‖ is at least this
    is_known: Flags  # both rows hold the summary of values
    is_identical: Flags  # every statistic is the same to the bit
    nonfinite_differs: Flags  # other numbers of NaN or infinite elements


def has_summary(rows: StepRows) -> Flags:
    """Which rows tell of values: a digest alone comes with the number of elements and nothing else."""
    found = (rows.counts["n_hist"] > 0) | (rows.values["sumsq"] > 0) | (rows.values["absmax"] > 0)
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found |= rows.counts[name] > 0
    return found & (rows.counts["n"] > 0)


@np.errstate(all="ignore")  # a damaged recording holds any numbers
def bound(baseline: StepRows, candidate: StepRows) -> Bound:
    """Compare rows one by one; both sides have the same length."""
    a, b = baseline.values, candidate.values
    n, size = baseline.counts["n"], np.sqrt(a["sumsq"])
    is_known = has_summary(baseline) & has_summary(candidate)
    is_known |= (n == 0) & (candidate.counts["n"] == 0)  # of empty tensors nothing differs
    is_known &= ~(baseline.is_bound | candidate.is_bound)
    same = is_known & (n == candidate.counts["n"])
    gaps = [np.abs(np.sqrt(b["sumsq"]) - size) - _SUMMED_ERROR * size]
    gaps.append(np.where(same, np.abs(b["sum"] - a["sum"]) / np.sqrt(np.maximum(n, 1)) - _SUMMED_ERROR * size, 0.0))
    has_extremes = same & np.isfinite(a["min"]) & np.isfinite(b["min"])
    gaps += [np.where(has_extremes, np.abs(b[name] - a[name]), 0.0) for name in ("min", "max", "absmax")]
    with np.errstate(all="ignore"):
        largest = np.nanmax(np.maximum(np.nan_to_num(np.stack(gaps), nan=0.0, posinf=np.inf), 0.0), axis=0)
        low = np.where(largest == 0.0, 0.0, largest / size)  # infinite of a baseline that is zero
    nonfinite = np.zeros(len(n), np.bool_)
    is_identical = same.copy()
    for name in ("n_nan", "n_posinf", "n_neginf"):
        nonfinite |= baseline.counts[name] != candidate.counts[name]
    for name in ("min", "max", "absmax", "sum", "sumsq"):
        is_identical &= (a[name] == b[name]) | (np.isnan(a[name]) & np.isnan(b[name]))
    return Bound(low=low, is_known=is_known, is_identical=is_identical & ~nonfinite, nonfinite_differs=nonfinite)
