"""Impose several things one after the other: what fails is said, and the others are imposed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypocenter.config import Config

Warn = Callable[[str], None]
Impose = Callable[[Config, Warn], dict[str, str]]


def impose_all(things: Iterable[Impose], config: Config, warn: Warn) -> dict[str, str]:
    """Impose one thing after the other; each tells what it did, and one that fails is warned of.

    Args:
        warn: says one line on stderr, and keeps it for run.json.

    Returns:
        Name -> what was imposed, in words.
    """
    done: dict[str, str] = {}
    for impose in things:
        try:
            done |= impose(config, warn)
        except Exception as error:
            what = impose.__module__.rpartition(".")[2]
            warn(f"{what} could not be imposed as asked for: {type(error).__name__}: {error}")
    return done
