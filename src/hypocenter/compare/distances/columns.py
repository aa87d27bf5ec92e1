"""Distances of the paired rows of one step as columns, each row at the deepest depth that both sides hold.

Depth sketch: relative error, cosine and scale of whole tensors from 1 KiB each, with the estimate's own error bar.

With S = Rᵀ D C of a difference D, ‖S‖² / K² has mean ‖D‖² and, for random signs, the relative variance
2/K² + (4/K) / r, where r = (Σσ²)² / Σσ⁴ of D's singular values says how many directions D has: 1 of a rank-one matrix,
many of noise. r is not known; that of S is, and 1/r(S) is about 1/r(D) + 2/K. (Own derivation from the moments of
Gaussian matrices; tests/compare measures how often the interval holds.)

Depth summary: what norms, sums and extremes alone say. A lower bound of the relative error, never more.

For values a and b: | ‖b‖ - ‖a‖ | <= ‖b - a‖ (triangle), |sum(b) - sum(a)| <= sqrt(n) ‖b - a‖ (Cauchy and Schwarz), and
the extremes differ by no more than the largest element of b - a, which is at most ‖b - a‖.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hypocenter.compare.comparison import Depth, Distance
from hypocenter.compare.rows import Flags, Ints, Reals, Sketches, StepRows
from hypocenter.summary.sketch import K

NONE, SUMMARY, SKETCH, TENSOR = 0, 1, 2, 3  # what a row was compared by
DEPTHS: dict[int, Depth | None] = {NONE: None, SUMMARY: "summary", SKETCH: "sketch", TENSOR: "tensor"}
_DEVIATIONS = 3.0  # standard deviations on both sides
_STORED = 2.0**-23  # of the baseline's norm: a sketch is summed and stored in float32
_SUMMED_ERROR = 2.0**-22  # float32 accumulation of a sum or a sum of squares may be off by this much of its magnitude
# Sums that were formed, or rounded, in the tensor's own format: a few of its roundings (its eps is twice one).
_ROUGH_ERROR = {"bfloat16": 2.0**-6, "float16": 2.0**-9}
_ROUGH_ELSE = 2.0**-20
_DECIMALS = 1e-6  # absolute, of the difference of two numbers written with six decimals


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """How far the rows of each pair are apart, as columns."""

    depth: npt.NDArray[np.int8]
    relative: Reals
    low: Reals
    high: Reals
    cosine: Reals
    scale: Reals
    is_equal: Flags  # the same to the bit, as far as can be seen

    def rows(self, at: Sequence[int]) -> list[Distance | None]:
        """Return the distances of the rows `at`; None for a row of which nothing can be compared."""
        names = ("depth", "relative", "low", "high", "cosine", "scale")
        columns = zip(*(getattr(self, name)[at].tolist() for name in names), strict=True)
        return [distance_of(DEPTHS[depth], *reals) for depth, *reals in columns]


def distance_of(
    depth: Depth | None, relative: float, low: float, high: float, cosine: float, scale: float
) -> Distance | None:
    """Return one row's numbers as a Distance; NaN means not known. None when `depth` is None."""
    if depth is None:
        return None
    cosine_known, scale_known = (None if math.isnan(one) else one for one in (cosine, scale))
    return Distance(depth=depth, relative=relative, low=low, high=high, cosine=cosine_known, scale=scale_known)


@np.errstate(all="ignore")
def distances(baseline: StepRows, candidate: StepRows, *, same_shape: Flags | None = None) -> Distances:
    """Compare the rows of two sides one by one.

    Args:
        baseline, candidate: as many rows on both sides, paired by place.
        same_shape: where sketches may be compared: tensors laid out alike; everywhere when not given.
    """
    found = bound(baseline, candidate)
    is_sum = _are_sums_with_sketches(baseline, candidate)
    found.low[is_sum], found.is_known[is_sum], found.is_identical[is_sum] = 0.0, True, False
    digests = baseline.has_digest & candidate.has_digest
    has_equal_bits = digests & (baseline.digest == candidate.digest) & _alike(baseline, candidate)
    # Bits of floats differ for good reasons, and of another type always: without values only integers tell.
    only_digest = digests & ~found.is_known & _alike(baseline, candidate)
    only_digest[only_digest] = has_equal_bits[only_digest] | _are_integers(baseline.dtype[only_digest])
    depth = np.where(found.is_known | only_digest, SUMMARY, NONE).astype(np.int8)
    is_scalar = _are_scalars(baseline) & _are_scalars(candidate)
    low = np.where(is_scalar, _of_scalars(baseline, candidate), found.low)
    relative = low.copy()
    high = np.where(is_scalar, low, np.inf)
    cosine, scale = _signs_of_scalars(baseline, candidate)
    _add_sketches(baseline, candidate, same_shape, depth, relative, low, high, cosine, scale)
    depth[is_sum & (depth == SUMMARY)] = NONE
    has_other_bits = digests & ~has_equal_bits & _alike(baseline, candidate)
    is_equal = has_equal_bits | (~has_other_bits & found.is_identical & ((depth == SUMMARY) | (relative == 0.0)))
    # Masks that one program fills with -inf and the other with the lowest number: values alone cannot tell.
    masks = found.nonfinite_differs & (baseline.literal_inf | candidate.literal_inf)
    depth[masks & ~is_equal] = NONE
    is_bad = (found.nonfinite_differs & ~masks) | (only_digest & ~has_equal_bits)
    for column in (relative, low, high):
        column[is_bad] = np.inf
        column[is_equal] = 0.0
    return Distances(
        depth=depth, relative=relative, low=low, high=np.maximum(high, relative), cosine=cosine, scale=scale,
        is_equal=is_equal & (depth != NONE),
    )  # fmt: skip


def _are_sums_with_sketches(baseline: StepRows, candidate: StepRows) -> Flags:
    """Tell which rows are sums of parts with sketches: their summaries say nothing, but their sketches add up."""
    found = np.zeros(len(baseline), np.bool_)
    if not (baseline.is_bound.any() or candidate.is_bound.any()):
        return found
    rows, _, _ = _both_sketched(baseline, candidate)
    found[rows] = (baseline.is_bound | candidate.is_bound)[rows]
    return found


def _of_scalars(baseline: StepRows, candidate: StepRows) -> Reals:
    """Return the exact relative error of rows that have one element."""
    a, b = baseline.values["sum"], candidate.values["sum"]
    with np.errstate(all="ignore"):
        return np.where(a == b, 0.0, np.nan_to_num(np.abs(b - a) / np.abs(a), nan=np.inf, posinf=np.inf))


def _alike(baseline: StepRows, candidate: StepRows) -> Flags:
    return baseline.dtype == candidate.dtype


def _are_integers(dtypes: npt.NDArray[np.object_]) -> Flags:
    return np.array([str(name).startswith(("int", "uint", "bool")) for name in dtypes], np.bool_)


def _are_scalars(rows: StepRows) -> Flags:
    return (rows.counts["n"] == 1) & (rows.counts["n_hist"] == 1)


def _signs_of_scalars(baseline: StepRows, candidate: StepRows) -> tuple[Reals, Reals]:
    """Return cosine and scale of rows that have one element; NaN elsewhere."""
    is_scalar = _are_scalars(baseline) & _are_scalars(candidate)
    with np.errstate(all="ignore"):
        scale = np.where(is_scalar, candidate.values["sum"] / baseline.values["sum"], np.nan)
    scale[~np.isfinite(scale)] = np.nan
    return np.sign(scale), scale


def _add_sketches(
    baseline: StepRows, candidate: StepRows, same_shape: Flags | None, depth: npt.NDArray[np.int8],
    relative: Reals, low: Reals, high: Reals, cosine: Reals, scale: Reals,
) -> None:  # fmt: skip
    """Write the estimates of the rows with sketches into the given columns."""
    rows, mine, other = _both_sketched(baseline, candidate)
    keep = depth[rows] == SUMMARY
    if same_shape is not None:
        keep &= same_shape[rows]
    rows, mine, other = rows[keep], mine[keep], other[keep]
    if not len(rows) or baseline.sketch is None or candidate.sketch is None:
        return
    norm = np.where(baseline.is_bound[rows], np.nan, np.sqrt(baseline.values["sumsq"][rows]))
    found = estimate(baseline.sketch[mine], candidate.sketch[other], norm)
    depth[rows] = SKETCH
    # What summaries prove stands, also against an estimate.
    relative[rows] = np.maximum(found.relative, low[rows])
    low[rows] = np.maximum(found.low, low[rows])
    high[rows] = np.maximum(found.high, relative[rows])
    many = baseline.counts["n"][rows] > 1
    cosine[rows[many]], scale[rows[many]] = found.cosine[many], found.scale[many]


def _both_sketched(baseline: StepRows, candidate: StepRows) -> tuple[Ints, Ints, Ints]:
    """Return the rows with sketches on both sides, and their indices among the sketches of each side."""
    rows, mine, other = np.intersect1d(baseline.sketched, candidate.sketched, assume_unique=True, return_indices=True)
    return rows.astype(np.int64), mine.astype(np.int64), other.astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the distances of the tensors are estimated to be, for each pair of sketches."""

    relative: Reals
    low: Reals
    high: Reals
    cosine: Reals  # NaN when one side is zero
    scale: Reals  # ⟨candidate, baseline⟩ / ⟨baseline, baseline⟩; NaN when the baseline is zero


def estimate(baseline: Sketches, candidate: Sketches, norm: Reals) -> Estimate:
    """Compare sketches row by row.

    Args:
        baseline, candidate: one sketch a row.
        norm: the baseline's L2 norm, exact; that of the sketch is taken where it is 0 or not finite.
    """
    a, b = baseline.astype(np.float64), candidate.astype(np.float64)
    difference = b - a
    size = np.sqrt(np.einsum("ij,ij->i", difference, difference)) / K
    own = np.sqrt(np.einsum("ij,ij->i", a, a))
    other = np.sqrt(np.einsum("ij,ij->i", b, b))
    inner = np.einsum("ij,ij->i", a, b)
    norm = np.where(np.isfinite(norm) & (norm > 0), norm, own / K)
    spread = _DEVIATIONS * deviation(difference)
    with np.errstate(all="ignore"):
        relative = np.where(size == 0.0, 0.0, size / norm)
        low = np.where(size == 0.0, 0.0, np.maximum(relative / (1.0 + spread) - _STORED, 0.0))
        high = np.where(size == 0.0, 0.0, relative * (1.0 + spread) + _STORED)
        cosine = np.clip(inner / (own * other), -1.0, 1.0)
        scale = inner / (own * own)
    return Estimate(relative=relative, low=low, high=high, cosine=cosine, scale=scale)


def deviation(difference: Reals) -> Reals:
    """Return the relative standard deviation of the estimate of each difference's norm, from its sketch alone."""
    matrices = difference.reshape(len(difference), K, K)
    gram = np.matmul(matrices.transpose(0, 2, 1), matrices)
    second = np.einsum("ijk,ijk->i", gram, gram)
    first = np.einsum("ijj->i", gram)
    with np.errstate(all="ignore"):
        concentration = np.where(first > 0, second / (first * first), 1.0)  # 1 / r of the sketch
    directions = np.clip(concentration - 2.0 / K, 0.0, 1.0)
    return 0.5 * np.sqrt(2.0 / K**2 + (4.0 / K) * directions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What the summaries of each pair of rows tell of their distance: bounds."""

    low: Reals  # ‖candidate - baseline‖ / ‖baseline‖ is at least this
    is_known: Flags  # both rows hold the summary of values
    is_identical: Flags  # every statistic is the same to the bit
    nonfinite_differs: Flags  # other numbers of NaN or infinite elements


def has_summary(rows: StepRows) -> Flags:
    """Tell which rows have a summary: a digest alone comes with the number of elements and nothing else."""
    found = (rows.counts["n_hist"] > 0) | (rows.values["sumsq"] > 0) | (rows.values["absmax"] > 0)
    for name in ("n_nan", "n_posinf", "n_neginf"):
        found |= rows.counts[name] > 0
    found |= np.isfinite(rows.values["min"]) | np.isfinite(rows.values["max"])  # zeros, in an imported row
    return found & (rows.counts["n"] > 0)


def is_norm_alone(rows: StepRows) -> Flags:
    """Tell which rows hold a norm and nothing else, as those of gradients at level sentinel."""
    has_none = ~np.isfinite(rows.values["min"]) & (rows.counts["n_hist"] == 0) & (rows.values["absmax"] == 0)
    return has_none & (rows.values["sumsq"] > 0)


@np.errstate(all="ignore")  # a damaged recording holds any numbers
def bound(baseline: StepRows, candidate: StepRows) -> Bound:
    """Bound the distance of the rows of both sides, one by one; both have the same length."""
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
    """Return the relative rounding error that sums and norms of each row may have."""
    found = np.full(len(rows), _SUMMED_ERROR)
    rough = np.flatnonzero(rows.without("rough"))
    if len(rough):
        found[rough] = [_ROUGH_ERROR.get(str(name), _ROUGH_ELSE) for name in rows.dtype[rough]]
    return found
