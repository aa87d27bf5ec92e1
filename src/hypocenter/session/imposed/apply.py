"""Everything that may be imposed on a program, in order: called once, at the start of a session.

One file of this folder is one such thing, a function `begin(config, warn)` that does it when the options ask for it and
tells what it did, in words, under a short name: `{"dropout": "dropout off"}`; nothing when not asked for. What was
imposed is kept in run.json and said at the end of `hypocenter run`.
"""

from __future__ import annotations

from collections.abc import Callable

from hypocenter.config import Config
from hypocenter.session.imposed import algorithms, dropout, entropy, seeds

Warn = Callable[[str], None]
Impose = Callable[[Config, Warn], dict[str, str]]

IMPOSED: tuple[Impose, ...] = (seeds.begin, algorithms.begin, entropy.begin, dropout.begin)
"""Add yours here."""


def begin(config: Config, warn: Warn) -> dict[str, str]:
    """Impose what the options ask for. Called when torch has been imported, before the user's code goes on.

    Args:
        warn: says one line on stderr, and keeps it for run.json.

    Returns:
        Name -> what was imposed, in words.
    """
    done: dict[str, str] = {}
    for impose in IMPOSED:
        try:
            done |= impose(config, warn)
        except Exception as error:
            what = impose.__module__.rpartition(".")[2]
            warn(f"{what} could not be imposed as asked for: {type(error).__name__}: {error}")
    return done
