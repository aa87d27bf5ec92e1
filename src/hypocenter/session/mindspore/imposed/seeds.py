"""`--seed N`: the generators of Python, NumPy and MindSpore (operators, initializers, `mint`, data sets) begin at N.

They are set once, before the program's own code goes on: a program that seeds by itself gets its own seeds.
"""

from __future__ import annotations

import sys
from typing import Any

from hypocenter import deterministic
from hypocenter.config import Config
from hypocenter.session.imposed.wanted_seed import wanted_seed


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Seed the generators that nobody has seeded since they were imported."""
    seed = wanted_seed(config)
    if seed is None:
        return {}
    names = set_all(seed, is_deterministic=config.deterministic, skip=deterministic.seeded)
    return {"seed": f"seed {seed} for {', '.join(names)}"}


def set_all(seed: int, *, is_deterministic: bool, skip: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Seed all generators but those in `skip`; return the names of all that stand at a seed of ours."""
    if "random" not in skip:
        deterministic.seed_random(seed)
    if "numpy" not in skip:
        deterministic.seed_numpy(seed)
    if "mindspore" not in skip:
        deterministic.switch_mindspore(seed, deterministic=is_deterministic)
    return [name for name in ("random", "numpy", "mindspore") if name in sys.modules]
