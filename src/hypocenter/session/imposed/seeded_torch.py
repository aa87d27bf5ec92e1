"""The half of `hypocenter.seed_all` that is torch's."""

from __future__ import annotations

from hypocenter.config import Config
from hypocenter.session.imposed import algorithms, dropout, entropy
from hypocenter.session.imposed.in_order import Warn
from hypocenter.session.imposed.seeds import set_all


def begin(config: Config, warn: Warn) -> None:
    """Seed torch and impose what belongs to it; called when torch is imported."""
    set_all(config.seed or 0)
    for impose in (algorithms.begin, entropy.begin, dropout.begin):
        impose(config, warn)
