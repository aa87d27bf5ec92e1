"""Does an Adam of people's own count its steps once for each parameter?

Its update is `lr * c(t) * m / root(v)` with `c(t) = root(1 - beta2^t) / (1 - beta1^t)`, and t is the step. The betas
are read off its first step (`m` is then `(1 - beta1) * g`), and each parameter's c off its change. Where t is counted
in the loop over parameters, the c of one after the other are those of 1, 2, 3, ... within one step, and go on in the
next.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.optimizers.fitted import Moved
from hypocenter.optimizers.rounded import Array

NEAR = 0.01  # of a factor
FIT = 1e-3  # of a change: it is that of a mean over a root
FEWEST = 4  # parameters
ABOVE = 1e-6  # roots, beside which an eps of 1e-8 does not matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Betas:
    """Of one optimizer: which of its states are the means of gradients and of their squares, and how they decay."""

    mean: str
    square: str
    beta1: float
    beta2: float

    def correction(self, t: int) -> float:
        """What the bias correction of step t multiplies the update with."""
        return math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)


def betas_of(first: Sequence[Moved]) -> Betas | None:
    """Read the betas off the first step of some parameters; None where there are no such states."""
    if any(np.any(value) for each in first for value in each.state.values()):
        return None
    for mean, square in itertools.permutations(sorted(first[0].new), 2):
        one, other = _share(first, mean, 1), _share(first, square, 2)
        if one is not None and other is not None and 0.0 < other < one < 1.0:
            return Betas(mean=mean, square=square, beta1=1.0 - one, beta2=1.0 - other)
    return None


def counts_parameters(moved: Sequence[Moved], rates: Sequence[float], betas: Betas, n_before: int) -> bool:
    """Return whether each parameter's correction is that of its place after `n_before` others, and no other's is.

    Args:
        moved: all parameters of an optimizer, in its order.
        rates: the learning rate of each.
        n_before: updates of parameters before this step, of all of them.
    """
    found = [_correction(each, rate, betas) for each, rate in zip(moved, rates, strict=True)]
    known = {place: value for place, value in enumerate(found) if value is not None}
    if len(known) < FEWEST or len(known) < len(moved) / 2:
        return False
    wanted = {place: betas.correction(n_before + place + 1) for place in known}
    usual = betas.correction(n_before // len(moved) + 1)
    is_so = all(abs(known[place] / wanted[place] - 1.0) <= NEAR for place in known)
    return is_so and sum(abs(wanted[place] / usual - 1.0) > 4 * NEAR for place in known) > len(known) / 2


def _share(first: Sequence[Moved], state: str, power: int) -> float | None:
    """Return which multiple of a power of the gradient a state of all these is."""
    there = np.concatenate([each.new[state] for each in first])
    given = np.concatenate([each.gradient**power for each in first])
    size = float(given @ given)
    share = float(there @ given) / size if size > 0.0 else math.nan
    return share if np.linalg.norm(there - share * given) <= FIT * np.linalg.norm(there) and share > 0.0 else None


def _correction(moved: Moved, rate: float, betas: Betas) -> float | None:
    """Return the factor of the change over `rate * m / root(v)`; a decay of the weight is taken out. None: no fit."""
    new: Mapping[str, Array] = moved.new
    root = np.sqrt(np.maximum(new[betas.square], 0.0))
    is_fine = root > ABOVE
    if rate <= 0.0 or int(is_fine.sum()) < FEWEST:
        return None
    direction = new[betas.mean][is_fine] / root[is_fine]
    columns = np.stack([-rate * direction, moved.value[is_fine]], axis=1)
    done = (moved.after - moved.value)[is_fine]
    found = np.linalg.lstsq(columns, done, rcond=None)[0]
    rounding = moved.eps * float(np.linalg.norm(moved.value[is_fine]))
    rest = float(np.linalg.norm(columns @ found - done))
    return float(found[0]) if rest <= FIT * float(np.linalg.norm(done)) + rounding and found[0] > 0.0 else None
