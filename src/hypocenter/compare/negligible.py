"""Parameters whose gradient is nothing but rounding: exact mathematics would give zero, each run gives other noise.

The bias of attention keys is the usual one: it changes no attention weight. Its gradient differs wholly between two
good runs, and an optimizer that divides by the gradient's size makes full steps of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import Pair
from hypocenter.compare.distances.columns import Distances
from hypocenter.compare.noise import Floors
from hypocenter.compare.rows import Flags
from hypocenter.compare.verdict import CANNOT_TELL, DIFFERS

_UNRELATED = 0.25  # relative error from which on two gradients have little in common
_OF_PARAMETERS = ("param", "grad", "optimizer")


class Negligible:
    """Knows which parameters these are, once their gradients were seen.

    Args:
        pairs: of the matching.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        spots = [pair.baseline[0] for pair in pairs]
        self._is_gradient = np.array([s.phase == "grad" and s.port == "grad" for s in spots], np.bool_)
        sites = {site: number for number, site in enumerate(dict.fromkeys(spot.site for spot in spots))}
        self._site = np.array([sites[spot.site] for spot in spots], np.int64)
        self._is_of_parameter = np.array([spot.phase in _OF_PARAMETERS for spot in spots], np.bool_)
        self._known = np.zeros(len(sites), np.bool_)

    def judge(
        self, aligned: Aligned, distances: Distances, floors: Floors, verdicts: npt.NDArray[np.int8]
    ) -> tuple[npt.NDArray[np.int8], Flags]:
        """Verdicts in which rows of such parameters say nothing; and which rows these are."""
        pair = aligned.pair
        gradients = self._is_gradient[pair]
        sizes = np.maximum(aligned.baseline.values["sumsq"], aligned.candidate.values["sumsq"])
        whole = sizes[gradients].sum()
        is_known = ~(aligned.baseline.without("sumsq") | aligned.candidate.without("sumsq"))
        is_noise = gradients & is_known & (sizes <= floors.relative**2 * whole) & (distances.relative > _UNRELATED)
        before = self._known.copy()
        self._known[self._site[pair[is_noise]]] = True
        rows = before[self._site[pair]] & self._is_of_parameter[pair]  # what an update with such a gradient made
        rows |= self._known[self._site[pair]] & gradients
        rows &= (verdicts == DIFFERS) | (verdicts == CANNOT_TELL)
        return np.where(rows, CANNOT_TELL, verdicts).astype(np.int8), rows
