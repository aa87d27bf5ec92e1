"""Does the difference swing around zero, or lean to one side?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypocenter.compare.curves.curve import Values
from hypocenter.compare.curves.statistics import Estimate, mean_of, memory_of

ENOUGH = 8.0  # independent values from which a lean can be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """On which side of zero the differences are."""

    mean: Estimate
    share_above: float  # of the differences that are not 0
    lean: float  # standard errors by which that share is off one half; autocorrelation of the signs allowed for
    n_effective: float  # independent signs
    n_crossings: int


def swing_of(difference: Values) -> Swing:
    """Mean and signs of a difference.

    Sign test (a binomial share of one half) with n / tau in place of n, tau being the autocorrelation time of the
    signs: neighbours are not independent. With fewer than eight independent signs nothing can be said.
    """
    signs = np.sign(difference[difference != 0.0])
    n = len(signs)
    effective = n / memory_of(signs) if n else 0.0
    share = float((signs > 0).mean()) if n else 0.5
    if n and abs(signs.sum()) == n:  # all on one side: the signs' own memory cannot be seen, the values' can
        effective = n / memory_of(difference)
    crossings = int((np.diff(signs) != 0).sum()) if n else 0
    return Swing(
        mean=mean_of(difference), share_above=share, lean=(2 * share - 1) * float(np.sqrt(effective)),
        n_effective=effective, n_crossings=crossings,
    )  # fmt: skip
