"""The half of `hypocenter.seed_all` that is MindSpore's."""

from __future__ import annotations

from hypocenter.config import Config
from hypocenter.session.imposed.in_order import Warn
from hypocenter.session.mindspore.imposed import algorithms, dropout, entropy
from hypocenter.session.mindspore.imposed.seeds import set_all


def begin(config: Config, warn: Warn) -> None:
    """Seed MindSpore and impose what belongs to it; called when MindSpore is imported."""
    set_all(config.seed or 0, is_deterministic=config.deterministic)
    for impose in (algorithms.begin, entropy.begin, dropout.begin):
        impose(config, warn)
