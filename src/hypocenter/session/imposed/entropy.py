"""`--deterministic`: generators that a program makes without a seed get one that is derived from the process's.

Those of Python and NumPy (derived_seeds.py), and `torch.seed()`. The seed that they get follows from torch's initial
seed, which differs between the workers of a DataLoader, and from how many there were before.
"""

from __future__ import annotations

from typing import Any

import torch

from hypocenter.config import Config
from hypocenter.session.imposed.derived_seeds import derive, next_seed


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Replace the functions that make seeds of their own, if `--deterministic` was given."""
    if not config.deterministic:
        return {}
    derive(torch.initial_seed)
    torch.seed = torch.random.seed = _torch_seed  # type: ignore[assignment]
    return {"entropy": "seeds for generators made without"}


def _torch_seed() -> int:
    seed = next_seed(torch.initial_seed)
    torch.manual_seed(seed)
    return seed
