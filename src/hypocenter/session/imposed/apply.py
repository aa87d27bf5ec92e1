"""Everything that may be imposed on a program, in order: called once, at the start of a session.

One file of this folder is one such thing, a function `begin(config, warn)` that does it when the options ask for it and
tells what it did, in words, under a short name: `{"dropout": "dropout off"}`; nothing when not asked for. What was
imposed is kept in run.json and said at the end of `hypocenter run`.
"""

from __future__ import annotations

from hypocenter.config import Config
from hypocenter.session.imposed import algorithms, change, dropout, entropy, seeds
from hypocenter.session.imposed.in_order import Impose, Warn, impose_all

IMPOSED: tuple[Impose, ...] = (seeds.begin, algorithms.begin, entropy.begin, dropout.begin, change.begin)
"""Add yours here."""


def begin(config: Config, warn: Warn) -> dict[str, str]:
    """Impose what the options ask for. Called when torch has been imported, before the user's code goes on."""
    return impose_all(IMPOSED, config, warn)
