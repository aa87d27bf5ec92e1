"""The first row of a step that is not equal to the bit: no noise of others has reached it, only its own.

A floor that was measured at a spot holds what came from everything before it too. Where parameters, batch and every
value before are equal to the bit there is none of that: in a short format, whose sums are formed in float32, what a
module can be off by is a few roundings of what it gives: a bound, and no sample of noise that chance may pass.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hypocenter.compare.aligned import Aligned
from hypocenter.compare.comparison import STAGES
from hypocenter.compare.distances.columns import Distances
from hypocenter.compare.noise import ASSUMED, ROUNDING, Floors
from hypocenter.formats import FORMATS

# eps of the short formats: distance from 1 to the next number. One of it is some three roundings of every element at
# their worst, about 0.3 eps each; other good kernels were apart by 0.6 at most (docs/comparing-cases.md).
_EPS = {name: FORMATS[name].eps for name in ("float16", "bfloat16")}
_PARAM, _FORWARD = STAGES.index("param"), STAGES.index("forward")


def with_first_bits(aligned: Aligned, found: Distances, floors: Floors) -> Floors:
    """The floors, lowered at the first row of the step that is not equal to the bit, if it is of forward."""
    apart = np.flatnonzero(~found.is_equal)
    if not len(apart) or not (aligned.stage == _PARAM).any():  # without parameters nobody knows that they are equal
        return floors
    first = int(apart[0])
    eps = _EPS.get(str(aligned.baseline.dtype[first]), 0.0)
    if aligned.stage[first] != _FORWARD or not eps or floors.relative[first] <= eps:
        return floors
    relative, source, n_samples = floors.relative.copy(), floors.source.copy(), floors.n_samples.copy()
    relative[first] = eps
    if source[first] != ASSUMED:
        source[first], n_samples[first] = ROUNDING, 0
    return replace(floors, relative=relative, source=source, n_samples=n_samples)
