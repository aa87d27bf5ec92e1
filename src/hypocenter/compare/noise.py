"""The noise floor: how far two good runs are apart, spot by spot. Measured where it can be, else assumed per dtype.

Measured is the largest distance seen so far at the spot between the baseline and its repeats, or between a step and its
perturbed replays (`run --calibrate`); never below what one rounding does, and never below the median of the same phase
(of fewer than three samples the upper quartile): few samples may be close by chance.

At the first row of a step that is not equal to the bit there is no noise of what came before it. In a short format,
whose sums are formed in float32, such a module can be off by a few roundings of what it gives: that is a bound, and no
sample of noise that chance may pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import STAGES, Floor, FloorSource, SiteCard, stages_of
from hypocenter.compare.distances.columns import NONE, Distances
from hypocenter.compare.rows import Ints, Reals
from hypocenter.formats import FORMATS, format_of

# What two good runs on different devices are apart by at most before it looks wrong, at depth of a few layers:
# rounding of float32 adds up over sums (2**3 eps); that of a short format is hidden by accumulation in float32.
_ASSUMED = {
    "float64": 2.0**-46, "complex128": 2.0**-46, "float32": 2.0**-20, "complex64": 2.0**-20, "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
}  # fmt: skip
_OF_INTEGERS = 2.0**-12  # indices that a router picks may flip here and there
ZONE = 64.0  # times an assumed floor: below it nobody can tell
_ROUNDING = 0.25  # of eps: relative L2 error of rounding each element once (eps / sqrt(12), about)
_ROUNDING_OF_SUMS = 1.0  # of eps: of the formats in which sums are formed, over a sum or two
_SUMS = ("float64", "float32", "complex128", "complex64")
_MANY = 3  # samples, from which on one of them is likely to be a large one
FLOOR_SOURCES: tuple[FloorSource, ...] = ("none", "assumed", "calibration", "repeats", "rounding")
NO_FLOOR, ASSUMED, CALIBRATION, REPEATS, ROUNDING = range(5)
# eps of the short formats: distance from 1 to the next number. One of it is some three roundings of every element at
# their worst, about 0.3 eps each; other good kernels were apart by 0.6 at most (docs/comparing-cases.md).
_EPS_OF_SHORT = {name: FORMATS[name].eps for name in ("float16", "bfloat16")}
_PARAM, _FORWARD = STAGES.index("param"), STAGES.index("forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The noise floor of each pair of rows, as columns."""

    relative: Reals
    source: npt.NDArray[np.int8]
    n_samples: Ints

    def rows(self, at: Sequence[int]) -> list[Floor]:
        """Return the floors of the rows `at`."""
        columns = (column[at].tolist() for column in (self.relative, self.source, self.n_samples))
        return [Floor(relative=r, source=FLOOR_SOURCES[s], n_samples=n) for r, s, n in zip(*columns, strict=True)]


class Noise:
    """What is known of the floors of all pairs; grows while the recordings are read.

    Args:
        cards: of the baseline's spots, one for each pair (the first of a fused one), in the order of the pairs.
        is_exact: pairs of what a program is given or told: data, learning rate. These have no noise.
    """

    def __init__(self, cards: Sequence[SiteCard], is_exact: npt.NDArray[np.bool_]) -> None:
        n = len(cards)
        self._stage = np.array(stages_of([card.spot for card in cards]), np.int64)
        self._assumed, self._rounding = _by_dtype(cards)
        self._exact = is_exact
        self._measured = np.zeros(n)
        self._n_samples = np.zeros(n, np.int64)
        self._source = np.full(n, ASSUMED, np.int8)
        self._step = np.full(n, -1, np.int64)  # the last one at which it was measured
        self.has_measured = False  # something that is not zero

    def learn(self, pair: Ints, distances: Distances, source: int, step: int) -> None:
        """Learn from distances between two good runs at one step: `source` is CALIBRATION or REPEATS."""
        known = (distances.depth != NONE) & np.isfinite(distances.relative)
        pair, relative = pair[known], distances.relative[known]
        if not len(pair):
            return
        self.has_measured |= bool((relative > 0).any())
        np.maximum.at(self._measured, pair, relative)
        seen, counts = np.unique(pair, return_counts=True)
        self._n_samples[seen] += counts
        self._source[seen] = np.maximum(self._source[seen], source)
        self._step[seen] = step

    def of(self, pair: Ints, step: int) -> Floors:
        """Return the floors of pairs at a step, as far as is known by now.

        Noise grows from step to step: what was measured at an earlier one is a lower bound, and counts as assumed.
        """
        if not self.has_measured:
            return self._floors(pair, np.full(len(pair), ASSUMED, np.int8), self._assumed[pair])
        n_samples = np.median(self._n_samples[self._n_samples > 0])
        quantile = 0.5 if n_samples >= _MANY else 0.75
        typical = np.zeros(int(self._stage.max(initial=0)) + 1)
        for stage in np.unique(self._stage):
            of_stage = self._measured[(self._stage == stage) & (self._n_samples > 0)]
            typical[stage] = np.quantile(of_stage, quantile) if len(of_stage) else 0.0
        floor = np.maximum(np.maximum(self._measured, typical[self._stage]), self._rounding)[pair]
        source = np.where(self._step[pair] < step, ASSUMED, self._source[pair]).astype(np.int8)
        return self._floors(pair, source, np.where(source == ASSUMED, np.maximum(self._assumed[pair], floor), floor))

    def _floors(self, pair: Ints, source: npt.NDArray[np.int8], relative: Reals) -> Floors:
        exact = self._exact[pair]
        return Floors(
            relative=np.where(exact, FORMATS["float32"].eps, relative),
            source=np.where(exact, NO_FLOOR, source).astype(np.int8),
            n_samples=np.where(exact | (source == ASSUMED), 0, self._n_samples[pair]),
        )

    @property
    def is_silent(self) -> bool:
        """Whether there were repeats, all equal to the bit: they measure nothing."""
        return bool((self._n_samples > 0).any()) and not self.has_measured

    @property
    def source(self) -> FloorSource:
        """The source that most floors come from."""
        if not self.has_measured:
            return "assumed"
        return FLOOR_SOURCES[int(self._source.max(initial=ASSUMED))]


def _by_dtype(cards: Sequence[SiteCard]) -> tuple[Reals, Reals]:
    """Return assumed floors and roundings: of parameters by their dtype, of results by the coarsest dtype before."""
    coarsest, assumed, rounding = 0.0, np.zeros(len(cards)), np.zeros(len(cards))
    stages = stages_of([card.spot for card in cards])
    order = sorted(range(len(cards)), key=lambda i: (stages[i], cards[i].order))
    for i in order:
        card = cards[i]
        form = format_of(card.dtype)
        eps = 0.0 if form is None else form.eps
        own = _ASSUMED.get(card.dtype, eps) if eps else _OF_INTEGERS
        if card.spot.phase in ("forward", "backward") and eps:
            coarsest = max(coarsest, own)
        is_computed = card.spot.phase not in ("data", "param", "optimizer") and eps
        assumed[i] = max(own, coarsest) if is_computed else own
        is_sum = card.dtype in _SUMS and (is_computed or card.spot.phase == "optimizer")
        rounding[i] = (_ROUNDING_OF_SUMS if is_sum else _ROUNDING) * eps
    return assumed, rounding


def with_first_bits(aligned: Aligned, found: Distances, floors: Floors) -> Floors:
    """Return the floors, lowered at the step's first row that is not equal to the bit, if it is of forward."""
    apart = np.flatnonzero(~found.is_equal)
    if not len(apart) or not (aligned.stage == _PARAM).any():  # without parameters nobody knows that they are equal
        return floors
    first = int(apart[0])
    eps = _EPS_OF_SHORT.get(str(aligned.baseline.dtype[first]), 0.0)
    if aligned.stage[first] != _FORWARD or not eps or floors.relative[first] <= eps:
        return floors
    relative, source, n_samples = floors.relative.copy(), floors.source.copy(), floors.n_samples.copy()
    relative[first] = eps
    if source[first] != ASSUMED:
        source[first], n_samples[first] = ROUNDING, 0
    return replace(floors, relative=relative, source=source, n_samples=n_samples)
