"""Do the averages of an optimizer of people's own keep as much as they take in?

A state that becomes `a * state + c * gradient` is an average where a + c is 1; one of the gradient's squares too. Both
multiples are read off one step of all parameters. An average of gradients with a sum of 1 takes in the gradient as it
is; where the average of its squares then has another sum, the two do not fit: the root of one is no size of the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.optimizers.fitted import Moved

FIT = 1e-4  # of a state: it is made of these two
APART = 0.99  # cosine between what is kept and what comes in: below, one can be told from the other
NEAR, FAR = 0.02, 0.1  # relative: what is taken in is what is let go, or is not
CERTAIN = 10  # errors of the fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlike:
    """An average of squares whose weights do not sum to 1, beside one of gradients whose weights do.

    Attributes:
        mean, square: names of the states.
        kept, taken: weights of the squares before, and of the new ones.
    """

    mean: str
    square: str
    kept: float
    taken: float


def unlike(moved: Sequence[Moved]) -> Unlike | None:
    """Return the averages of one step of some parameters that do not fit; None: they do, or it cannot be told."""
    if any(each.state.keys() != moved[0].state.keys() for each in moved):
        return None
    for mean, square in itertools.permutations(sorted(moved[0].state), 2):
        one, other = _weights(moved, mean, 1), _weights(moved, square, 2)
        if one is None or other is None or abs(one.taken - one.let_go) > NEAR * one.let_go:
            continue
        apart = abs(other.taken - other.let_go)
        if apart > max(FAR * other.let_go, CERTAIN * other.error) and other.taken < 1.0 - NEAR:
            return Unlike(mean=mean, square=square, kept=other.kept, taken=other.taken)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    kept: float
    taken: float
    error: float  # of their sum

    @property
    def let_go(self) -> float:
        return 1.0 - self.kept


def _weights(moved: Sequence[Moved], state: str, power: int) -> _Weights | None:
    """Return the multiples of a state and of a power of the gradient that make what it is now; None: nothing does."""
    was, given, now = (
        np.concatenate(parts)
        for parts in zip(*((each.state[state], each.gradient**power, each.new[state]) for each in moved), strict=True)
    )
    sizes = np.array([np.linalg.norm(was), np.linalg.norm(given)])
    if not sizes.all() or abs(was @ given) > APART * sizes.prod():
        return None
    columns = np.stack([was, given], axis=1) / sizes
    found = np.linalg.lstsq(columns, now, rcond=None)[0]
    rest = float(np.linalg.norm(columns @ found - now))
    kept, taken = (found / sizes).tolist()
    if rest > FIT * np.linalg.norm(now) or not 0.0 < kept < 1.0 or taken <= 0.0:
        return None
    error = rest / math.sqrt(1.0 - APART**2) * float((1.0 / sizes).sum())
    return _Weights(kept=kept, taken=taken, error=error)
