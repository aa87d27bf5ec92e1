"""Rows of which both sides hold the values are compared by these: the deepest depth that there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import Pair, RowComparison
from hypocenter.compare.distances.columns import NONE, SUMMARY, TENSOR, Distances
from hypocenter.compare.distances.tensor import TensorDistance, tensor_distance
from hypocenter.compare.values.bits import Array
from hypocenter.compare.values.laid_out import Views, laid_out
from hypocenter.compare.values.recorded import RecordedValues


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
        """Whether both sides hold values at all."""
        return self.baseline.has_any and self.candidate.has_any

    def views(self, pair: Pair, step: int, microbatch: int) -> Views | None:
        """The values of a pair, laid alike; None where a side lacks them."""
        mine = [self.baseline.find(spot, step, microbatch) for spot in pair.baseline]
        theirs = [self.candidate.find(spot, step + self.shift, microbatch) for spot in pair.candidate]
        a, b = [one for one in mine if one is not None], [one for one in theirs if one is not None]
        if len(a) < len(mine) or len(b) < len(theirs) or not a or not b:
            return None
        return laid_out(pair.layout, a, b)

    def distance(self, pair: Pair, step: int, microbatch: int) -> TensorDistance | None:
        """How far the values of a pair are apart; None where a side lacks them."""
        views = self.views(pair, step, microbatch)
        return tensor_distance(views) if views is not None else None

    def arrays(self, pair: Pair, step: int, microbatch: int) -> tuple[Array, Array] | None:
        """The values of a pair in float64; parts put together along the layout's dimension."""
        views = self.views(pair, step, microbatch)
        if views is None:
            return None
        mine, theirs = [a.values() for a, _ in views], [b.values() for _, b in views]
        if len(views) == 1 or pair.layout.kind == "copies":
            return mine[0], theirs[0]
        return np.concatenate(mine, pair.layout.dim), np.concatenate(theirs, pair.layout.dim)

    def deepen(self, pairs: Sequence[Pair], aligned: Aligned, found: Distances) -> None:
        """Put what the values say in the place of summaries and sketches. Equal digests need no second look."""
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
        """Leave out noise of which only lower bounds are known: what values say must not be held against these."""
        if self.has_any:
            found.depth[(found.depth == SUMMARY) & np.isinf(found.high)] = NONE

    def detailed(self, row: RowComparison) -> RowComparison:
        """A row at depth tensor with all that was measured."""
        if row.distance is None or row.distance.depth != "tensor":
            return row
        exact = self.distance(row.pair, row.step, row.microbatch)
        return replace(row, distance=exact.distance) if exact is not None else row

    @property
    def problems(self) -> list[str]:
        """Files that could not be read."""
        return self.baseline.problems + self.candidate.problems


def _put(found: Distances, at: int, exact: TensorDistance) -> None:
    found.depth[at] = TENSOR
    found.is_equal[at] = exact.is_equal
    for column in (found.relative, found.low, found.high):
        column[at] = exact.relative
    found.cosine[at] = np.nan if exact.cosine is None else exact.cosine
    found.scale[at] = np.nan if exact.scale is None else exact.scale
