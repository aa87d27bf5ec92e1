"""The seed that the options ask for."""

from __future__ import annotations

from hypocenter import deterministic
from hypocenter.config import Config


def wanted_seed(config: Config) -> int | None:
    """Return the seed of `--seed`, 42 with `--deterministic` alone; None when generators are left alone."""
    if config.seed is not None:
        return config.seed
    return deterministic.SEED if config.deterministic else None
