"""`--deterministic`: generators that a program makes without a seed get one that is derived from the process's.

Those of Python and NumPy (hypocenter.session.imposed.derived_seeds), and `mindspore.seed()`.
"""

from __future__ import annotations

from typing import Any

import mindspore  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config
from hypocenter.deterministic import SEED
from hypocenter.session.imposed.derived_seeds import derive, next_seed
from hypocenter.session.imposed.wanted_seed import wanted_seed


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Replace the functions that make seeds of their own, if `--deterministic` was given."""
    if not config.deterministic:
        return {}
    seed = wanted_seed(config) or SEED

    def begin_at() -> int:
        found = mindspore.get_seed()
        return seed if found is None else int(found)

    def seed_default_generator() -> int:
        fresh = next_seed(begin_at)
        mindspore.manual_seed(fresh)
        return fresh

    derive(begin_at)
    if hasattr(mindspore, "seed"):  # MindSpore 2.3 and later
        mindspore.seed = seed_default_generator
    return {"entropy": "seeds for generators made without"}
