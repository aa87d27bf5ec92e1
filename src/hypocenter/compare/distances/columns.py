"""Distances of the paired rows of one step as columns, each row at the deepest depth that both sides hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hypocenter.compare.comparison import Depth, Distance
from hypocenter.compare.distances.sketch import estimate
from hypocenter.compare.distances.summary import bound
from hypocenter.compare.rows import Flags, Ints, Reals, StepRows

NONE, SUMMARY, SKETCH, TENSOR = 0, 1, 2, 3  # what a row was compared by
_DEPTHS: dict[int, Depth] = {SUMMARY: "summary", SKETCH: "sketch", TENSOR: "tensor"}


def depth_word(code: int) -> Depth | None:
    """The depth as it is written; None: the row could not be compared."""
    return _DEPTHS.get(code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Of each pair of rows how far they are apart."""

    depth: npt.NDArray[np.int8]
    relative: Reals
    low: Reals
    high: Reals
    cosine: Reals
    scale: Reals
    is_equal: Flags  # the same to the bit, as far as can be seen

    def row(self, at: int) -> Distance | None:
        """One of them; None when nothing that both sides hold can be compared."""
        if self.depth[at] == NONE:
            return None
        cosine, scale = float(self.cosine[at]), float(self.scale[at])
        return Distance(
            depth=_DEPTHS[int(self.depth[at])], relative=float(self.relative[at]), low=float(self.low[at]),
            high=float(self.high[at]), cosine=None if np.isnan(cosine) else cosine,
            scale=None if np.isnan(scale) else scale,
        )  # fmt: skip


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
    """Sums of parts whose values are not known, so that their summaries say nothing; their sketches add up."""
    found = np.zeros(len(baseline), np.bool_)
    if not (baseline.is_bound.any() or candidate.is_bound.any()):
        return found
    rows, _, _ = _both_sketched(baseline, candidate)
    found[rows] = (baseline.is_bound | candidate.is_bound)[rows]
    return found


def _of_scalars(baseline: StepRows, candidate: StepRows) -> Reals:
    """Relative error of what has one element, exact."""
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
    """Cosine and scale of what has one element; NaN elsewhere."""
    is_scalar = _are_scalars(baseline) & _are_scalars(candidate)
    with np.errstate(all="ignore"):
        scale = np.where(is_scalar, candidate.values["sum"] / baseline.values["sum"], np.nan)
    scale[~np.isfinite(scale)] = np.nan
    return np.sign(scale), scale


def _add_sketches(
    baseline: StepRows, candidate: StepRows, same_shape: Flags | None, depth: npt.NDArray[np.int8],
    relative: Reals, low: Reals, high: Reals, cosine: Reals, scale: Reals,
) -> None:  # fmt: skip
    """Put the estimates of rows with sketches in place."""
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
    """Rows with sketches on both sides, and where these are among the sketches of each."""
    rows, mine, other = np.intersect1d(baseline.sketched, candidate.sketched, assume_unique=True, return_indices=True)
    return rows.astype(np.int64), mine.astype(np.int64), other.astype(np.int64)
