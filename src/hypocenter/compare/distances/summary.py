"""Depth summary: what norms, sums and extremes alone say. A lower bound of the relative error, never more.

For values a and b: | ‖b‖ - ‖a‖ | <= ‖b - a‖ (triangle), |sum(b) - sum(a)| <= sqrt(n) ‖b - a‖ (Cauchy and Schwarz), and
the extremes differ by no more than the largest element of b - a, which is at most ‖b - a‖.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.rows import Flags, Reals, StepRows

_SUMMED_ERROR = 2.0**-22  # float32 accumulation of a sum or a sum of squares may be off by this much of its magnitude
# Sums that were formed, or rounded, in the tensor's own format: a few of its roundings (its eps is twice one).
_ROUGH_ERROR = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
_ROUGH_ELSE = 2.0**-20
_DECIMALS = 1e-6  # absolute, of the difference of two numbers written with six decimals


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
    found |= np.isfinite(rows.values["min"]) | np.isfinite(rows.values["max"])  # zeros, in an imported row
    return found & (rows.counts["n"] > 0)


def is_norm_alone(rows: StepRows) -> Flags:
    """Which rows hold a norm and nothing else, as those of gradients at level sentinel."""
    has_none = ~np.isfinite(rows.values["min"]) & (rows.counts["n_hist"] == 0) & (rows.values["absmax"] == 0)
    return has_none & (rows.values["sumsq"] > 0)


@np.errstate(all="ignore")  # a damaged recording holds any numbers
def bound(baseline: StepRows, candidate: StepRows) -> Bound:
    """Compare rows one by one; both sides have the same length."""
    a, b = baseline.values, candidate.values
    n, size = baseline.counts["n"], np.sqrt(a["sumsq"])
    is_known = has_summary(baseline) & has_summary(candidate)
    is_known |= (n == 0) & (candidate.counts["n"] == 0)  # of empty tensors nothing differs
    is_known &= ~(baseline.is_bound | candidate.is_bound)
    same = is_known & (n == candidate.counts["n"])
    summed = np.maximum(_summed_error(baseline), _summed_error(candidate))
    apart = np.where(baseline.without("rounded") | candidate.without("rounded"), _DECIMALS, 0.0)
    no_sum, no_size = (baseline.without(word) | candidate.without(word) for word in ("sum", "sumsq"))
    no_sum |= is_norm_alone(baseline) | is_norm_alone(candidate)
    gaps = [np.where(no_size, 0.0, np.abs(np.sqrt(b["sumsq"]) - size) - summed * size - apart)]
    added = np.abs(b["sum"] - a["sum"]) / np.sqrt(np.maximum(n, 1)) - summed * size - apart * np.sqrt(n)
    gaps.append(np.where(same & ~no_sum & ~no_size, added, 0.0))
    at_most = np.where(baseline.without("sumsq"), np.sqrt(n) * a["absmax"], size)
    at_most[baseline.without("sumsq") & baseline.without("extremes")] = np.inf
    for name in ("min", "max", "absmax"):
        known = same & np.isfinite(a[name]) & np.isfinite(b[name])
        if name == "absmax":
            known &= np.isfinite(a["min"]) & np.isfinite(b["min"])
            known &= ~(baseline.without("extremes") | candidate.without("extremes"))
        gaps.append(np.where(known, np.abs(b[name] - a[name]) - apart, 0.0))
    largest = np.nanmax(np.maximum(np.nan_to_num(np.stack(gaps), nan=0.0, posinf=np.inf), 0.0), axis=0)
    low = np.where(largest == 0.0, 0.0, largest / at_most)  # infinite of a baseline that is zero
    no_counts = baseline.without("counts") | candidate.without("counts")
    nonfinite = np.zeros(len(n), np.bool_)
    has_nan = [side.counts["n_nan"] > 0 for side in (baseline, candidate)]
    is_identical = same & ~no_sum & ~no_size
    for name in ("n_nan", "n_posinf", "n_neginf"):
        mine, other = baseline.counts[name], candidate.counts[name]
        # Lower bounds tell whether there are any; beside NaN not even that of infinities.
        is_any = ((mine > 0) != (other > 0)) & ((name == "n_nan") | ~(has_nan[0] | has_nan[1]))
        nonfinite |= np.where(no_counts, is_any, mine != other)
    for name in ("min", "max", "absmax", "sum", "sumsq"):
        is_identical &= (a[name] == b[name]) | (np.isnan(a[name]) & np.isnan(b[name]))
    return Bound(low=low, is_known=is_known, is_identical=is_identical & ~nonfinite, nonfinite_differs=nonfinite)


def _summed_error(rows: StepRows) -> Reals:
    """Relative, of sums and norms."""
    found = np.full(len(rows), _SUMMED_ERROR)
    rough = np.flatnonzero(rows.without("rough"))
    if len(rough):
        found[rough] = [_ROUGH_ERROR.get(str(name), _ROUGH_ELSE) for name in rows.dtype[rough]]
    return found
