"""Generators of Python and NumPy that a program makes without a seed get one that is derived from the process's.

`numpy.random.default_rng()`, `numpy.random.seed()` and `random.seed()` would take theirs from the operating system: no
seed of ours reaches them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from hypocenter.deterministic import SEEDS

_STEP = 0x9E37_79B9  # golden ratio times 2**32: neighbours in the count are far apart in the seed
_PLACES: tuple[tuple[Any, str], ...] = ((np.random, "default_rng"), (np.random, "seed"), (random, "seed"))
_state = {"n": 0}


def derive(begin_at: Callable[[], int]) -> None:
    """Replace the three functions, once in a process.

    Args:
        begin_at: the seed of the process, from which the others follow.
    """
    if "done" in _state:
        return
    _state["done"] = 1
    for place, name in _PLACES:
        setattr(place, name, _seeded(getattr(place, name), begin_at))


def next_seed(begin_at: Callable[[], int]) -> int:
    """Return the next derived seed of this process."""
    _state["n"] += 1
    return (begin_at() + _state["n"] * _STEP) % SEEDS


def _seeded(function: Callable[..., Any], begin_at: Callable[[], int]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        is_without = all(value is None for value in given)
        return function(next_seed(begin_at)) if is_without else function(*args, **kwargs)

    return wrapper
