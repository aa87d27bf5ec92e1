"""`--deterministic`: generators that a program makes without a seed get one that is derived from the process's.

`numpy.random.default_rng()`, `numpy.random.seed()`, `random.seed()` and `torch.seed()` would take theirs from the
operating system: no seed of ours reaches them. The seed that they get follows from torch's initial seed, which differs
between the workers of a DataLoader, and from how many there were before.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hypocenter.config import Config
from hypocenter.deterministic import SEEDS

_STEP = 0x9E37_79B9  # golden ratio times 2**32: neighbours in the count are far apart in the seed
_state = {"n": 0}


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Replace the four functions."""
    if not config.deterministic:
        return {}
    if "done" not in _state:
        _state["done"] = 1
        places: tuple[tuple[Any, str], ...] = ((np.random, "default_rng"), (np.random, "seed"), (random, "seed"))
        for place, name in places:
            setattr(place, name, _seeded(getattr(place, name)))
        torch.seed = _torch_seed  # type: ignore[assignment]
        torch.random.seed = _torch_seed  # type: ignore[assignment]
    return {"entropy": "seeds for generators made without"}


def next_seed() -> int:
    """The next derived seed of this process."""
    _state["n"] += 1
    return (torch.initial_seed() + _state["n"] * _STEP) % SEEDS


def _seeded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        return function(next_seed()) if all(value is None for value in given) else function(*args, **kwargs)

    return wrapper


def _torch_seed() -> int:
    seed = next_seed()
    torch.manual_seed(seed)
    return seed
