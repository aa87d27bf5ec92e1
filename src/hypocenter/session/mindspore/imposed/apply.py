"""Everything that may be imposed on a MindSpore program, in order: called once, at the start of a session.

One file of this folder is one such thing, a function `begin(config, warn)` that does it when the options ask for it and
tells what it did, in words, under a short name, as on the torch side (hypocenter.session.imposed).
"""

from __future__ import annotations

from hypocenter.config import Config
from hypocenter.session.imposed.in_order import Impose, Warn, impose_all
from hypocenter.session.mindspore.imposed import algorithms, dropout, entropy, seeds

IMPOSED: tuple[Impose, ...] = (seeds.begin, algorithms.begin, entropy.begin, dropout.begin)
"""Add yours here."""


def begin(config: Config, warn: Warn) -> dict[str, str]:
    """Impose what the options ask for. Called when MindSpore has been imported, before the user's code goes on."""
    return impose_all(IMPOSED, config, warn)
