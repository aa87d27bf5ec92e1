"""Is this the sum of those? Answered from small linear sketches, within what rounding explains.

A sum of n numbers rounded to a format of unit roundoff u is off by at most (n - 1) u Σ|x|, and as a rule by no more
than u √n Σ|x| (errors of single additions are independent). Norms stand for the tensors: ‖error‖ ≲ u √n Σ‖x‖. The
sketch itself is made in float32 and adds SKETCHED Σ‖x‖. MARGIN is on top of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.formats import FORMATS, format_of

MARGIN = 8.0
SKETCHED = 2.0**-17  # relative error of a small sketch, made in float32 of up to 2**30 elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Summand:
    """What is known of one tensor that is added."""

    sketch: Sequence[float]
    norm: float  # L2


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far a result is from the sum, as norms."""

    actual: float
    allowed: float
    expected: float  # norm of the sum, estimated

    @property
    def is_wrong(self) -> bool:
        """Whether the result is off by more than rounding explains."""
        return self.actual > self.allowed


def compare(summands: Sequence[Summand], result: Sequence[float], *, dtype: str, factor: float = 1.0) -> Difference:
    """Compare a result with the sum of the summands times `factor` (1 / n for a mean).

    Args:
        summands: of all ranks.
        result: sketch of what the ranks were given.
        dtype: of the data, without "torch."; an unknown one counts as float16.
    """
    expected = factor * np.sum(np.asarray([s.sketch for s in summands], dtype=np.float64), axis=0)
    total = factor * math.fsum(s.norm for s in summands)
    form = format_of(dtype) or FORMATS["float16"]
    relative = form.roundoff * math.sqrt(len(summands)) + SKETCHED
    tiny = form.least_kept  # what underflow may take from each
    side = math.sqrt(len(expected))
    actual = float(np.linalg.norm(np.asarray(result, dtype=np.float64) - expected)) / side
    size = float(np.linalg.norm(expected)) / side
    return Difference(actual=actual, allowed=MARGIN * (relative * total + tiny * len(summands)), expected=size)
