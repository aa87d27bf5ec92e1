"""`--seed N`: the generators of Python, NumPy and torch, of all devices, begin at N; the same on every rank.

They are set once, before the program's own code goes on: a program that seeds by itself gets its own seeds. Workers of
a DataLoader take theirs from torch's generator (torch.utils.data seeds torch, `random` and NumPy in each), so they
follow.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from hypocenter import deterministic
from hypocenter.config import Config
from hypocenter.session.imposed.later import when_imported
from hypocenter.session.imposed.wanted_seed import wanted_seed


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Seed the generators that nobody has seeded since they were imported."""
    seed = wanted_seed(config)
    if seed is None:
        return {}
    return {"seed": f"seed {seed} for {', '.join(set_all(seed, skip=deterministic.seeded))}"}


def set_all(seed: int, skip: set[str] | frozenset[str] = frozenset()) -> list[str]:
    """Seed all generators but those in `skip`; return the names of all that stand at a seed of ours."""
    if "random" not in skip:
        deterministic.seed_random(seed)
    if "numpy" not in skip:
        deterministic.seed_numpy(seed)
    torch.manual_seed(seed)  # all devices that torch knows, also those that are not started yet
    when_imported("torch_npu", lambda: _seed_npu(seed))
    names = ["random", "numpy", "torch", "mindspore"]
    return [name for name in names if name in sys.modules]


def _seed_npu(seed: int) -> None:
    npu: Any = getattr(torch, "npu", None)
    if npu is not None:
        npu.manual_seed_all(seed)
