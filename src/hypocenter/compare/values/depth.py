"""Rows of which both sides hold the values are compared by these: the deepest depth that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import Layout, Pair, RowComparison
from hypocenter.compare.distances.columns import NONE, SUMMARY, TENSOR, Distances
from hypocenter.compare.distances.tensor import TensorDistance, tensor_distance
from hypocenter.compare.values.bits import Array, Raw
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.compare.values.tensor_file import Stored

Views = list[tuple[Stored, Stored]]  # (baseline, candidate), of equal shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Values of two runs, by pairs of spots.

    Args:
        baseline, candidate: their values.
        shift: what to add to a step of the baseline for the candidate's.
    """

    baseline: RecordedValues
    candidate: RecordedValues
    shift: int = 0

    @property
    def has_any(self) -> bool:
        """Whether both sides hold recorded values at all."""
        return self.baseline.has_any and self.candidate.has_any

    def views(self, pair: Pair, step: int, microbatch: int) -> Views | None:
        """Return the values of a pair, laid out alike; None where a side lacks them."""
        mine = [self.baseline.find(spot, step, microbatch) for spot in pair.baseline]
        theirs = [self.candidate.find(spot, step + self.shift, microbatch) for spot in pair.candidate]
        a, b = [one for one in mine if one is not None], [one for one in theirs if one is not None]
        if len(a) < len(mine) or len(b) < len(theirs) or not a or not b:
            return None
        return laid_out(pair.layout, a, b)

    def distance(self, pair: Pair, step: int, microbatch: int) -> TensorDistance | None:
        """Return how far the values of a pair are apart; None where a side lacks them."""
        views = self.views(pair, step, microbatch)
        return tensor_distance(views) if views is not None else None

    def arrays(self, pair: Pair, step: int, microbatch: int) -> tuple[Array, Array] | None:
        """Return a pair's values in float64, parts joined along the layout's dimension; None where a side lacks any."""
        views = self.views(pair, step, microbatch)
        if views is None:
            return None
        mine, theirs = [a.values() for a, _ in views], [b.values() for _, b in views]
        if len(views) == 1 or pair.layout.kind == "copies":
            return mine[0], theirs[0]
        return np.concatenate(mine, pair.layout.dim), np.concatenate(theirs, pair.layout.dim)

    def deepen(self, pairs: Sequence[Pair], aligned: Aligned, found: Distances) -> None:
        """Replace distances from summaries and sketches by those of the values, except where digests are equal."""
        if not self.has_any:
            return
        known = aligned.baseline.has_digest & aligned.candidate.has_digest
        same = known & (aligned.baseline.digest == aligned.candidate.digest) & found.is_equal
        for at in np.flatnonzero(~same & (aligned.baseline.lane == 0) & (found.depth != NONE)).tolist():
            pair = pairs[int(aligned.pair[at])]
            exact = self.distance(pair, aligned.step, int(aligned.baseline.microbatch[at]))
            if exact is not None and not (exact.n_nonfinite_differs and not np.isinf(found.relative[at])):
                _put(found, at, exact)

    def forget_bounds(self, found: Distances) -> None:
        """Drop noise of which only lower bounds are known: what values say must not be held against these."""
        if self.has_any:
            found.depth[(found.depth == SUMMARY) & np.isinf(found.high)] = NONE

    def detailed(self, row: RowComparison) -> RowComparison:
        """Return a row of depth tensor with all that was measured; other rows as they are."""
        if row.distance is None or row.distance.depth != "tensor":
            return row
        exact = self.distance(row.pair, row.step, row.microbatch)
        return replace(row, distance=exact.distance) if exact is not None else row

    @property
    def problems(self) -> list[str]:
        """The files that could not be read, one line each."""
        return self.baseline.problems + self.candidate.problems


def _put(found: Distances, at: int, exact: TensorDistance) -> None:
    found.depth[at] = TENSOR
    found.is_equal[at] = exact.is_equal
    for column in (found.relative, found.low, found.high):
        column[at] = exact.relative
    found.cosine[at] = np.nan if exact.cosine is None else exact.cosine
    found.scale[at] = np.nan if exact.scale is None else exact.scale


def laid_out(layout: Layout, baseline: Sequence[Stored], candidate: Sequence[Stored]) -> Views | None:
    """Return views of both sides, a pair for each part; None when shapes do not fit, or the order is not known.

    Args:
        layout: of the pair.
        baseline, candidate: the parts of each side in order.
    """
    try:
        views = _views(layout, baseline, candidate)
    except (ValueError, IndexError):  # NumPy says so when a shape does not fit
        return None
    if views is None or any(a.shape != b.shape for a, b in views):
        return None
    return views


def _views(layout: Layout, baseline: Sequence[Stored], candidate: Sequence[Stored]) -> Views | None:
    if layout.kind == "copies":
        return [(a, _as_shape(b, a.raw.shape)) for a in baseline for b in candidate]
    if layout.kind in ("concatenated", "interleaved"):
        if len(baseline) == len(candidate) == 1:  # fused on both sides, in another order
            return _both_fused(layout, baseline[0], candidate[0])
        if len(candidate) == 1:
            return list(zip(baseline, _cut(candidate[0], layout), strict=True))
        return list(zip(_cut(baseline[0], layout), candidate, strict=True)) if len(baseline) == 1 else None
    if layout.kind == "identity" and len(baseline) == len(candidate):
        return list(zip(baseline, candidate, strict=True))
    if len(baseline) != 1 or len(candidate) != 1:
        return None
    a, b = baseline[0], candidate[0]
    if layout.swapped:
        b = _with(b, np.swapaxes(b.raw, 0, 1))
    if layout.kind == "transposed":
        b = _with(b, b.raw.T)
    elif layout.kind == "reshaped":
        b = _with(b, b.raw.reshape(a.shape))
    elif layout.kind == "padded":
        a, b = _front(a, layout.dim, layout.sizes[0]), _front(b, layout.dim, layout.sizes[0])
    return [(a, b)]


def _as_shape(stored: Stored, shape: tuple[int, ...]) -> Stored:
    return stored if stored.raw.shape == shape else _with(stored, stored.raw.reshape(shape))


def _both_fused(layout: Layout, baseline: Stored, candidate: Stored) -> Views | None:
    """Pair the parts of two fused tensors; None when the parts are not known."""
    if not layout.sizes:
        return None
    plain = replace(layout, kind="concatenated", groups=1)
    return list(zip(_cut(baseline, plain), _cut(candidate, layout), strict=True))


def _cut(whole: Stored, layout: Layout) -> list[Stored]:
    """Cut a fused tensor into its parts."""
    raw = np.swapaxes(whole.raw, 0, 1) if layout.swapped else whole.raw
    groups = layout.groups if layout.kind == "interleaved" else 1
    if groups < 1 or sum(layout.sizes) != raw.shape[layout.dim] or any(size % groups for size in layout.sizes):
        raise ValueError("the parts are not known")
    grouped = raw.reshape(*raw.shape[: layout.dim], groups, -1, *raw.shape[layout.dim + 1 :])
    found: list[Stored] = []
    start = 0
    for size in layout.sizes:
        stop = start + size // groups
        part = grouped[(slice(None),) * (layout.dim + 1) + (slice(start, stop),)]
        found.append(_with(whole, part.reshape(*raw.shape[: layout.dim], size, *raw.shape[layout.dim + 1 :])))
        start = stop
    return found


def _front(tensor: Stored, dim: int, size: int) -> Stored:
    if size > tensor.shape[dim]:
        raise ValueError("less than both should have")
    return _with(tensor, tensor.raw[(slice(None),) * dim + (slice(0, size),)])


def _with(tensor: Stored, raw: Raw) -> Stored:
    return Stored(dtype=tensor.dtype, raw=raw)
