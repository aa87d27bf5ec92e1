"""`--change NAME=VALUE`: what must not matter is set to another value, as `hypocenter twin` does.

Each file of `changes/` is one, with a function `begin(value, note)`. What it really changed in this process, or met and
left, it tells by `note(text)`: a line of changes.jsonl in the run directory, from any process of the job, so that a
change which changed nothing is not taken for one that does not matter.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from hypocenter.catalogue import Catalogue, having
from hypocenter.config import Config
from hypocenter.errors import ConfigError
from hypocenter.record.layout import CHANGES_FILE

CATALOGUE: Catalogue[Callable[..., None]] = Catalogue(
    "hypocenter.session.imposed.changes", entry=lambda name, module: having("begin")(name, module) and module.begin
)
Note = Callable[[str], None]


def begin(config: Config, warn: Callable[[str], None]) -> dict[str, str]:
    """Make the changes.

    Raises:
        ConfigError: there is no change of a name that was given.
    """
    for asked in config.change:
        name, _, value = asked.partition("=")
        make = CATALOGUE.get(name)
        if make is None:
            known = ", ".join(CATALOGUE.names())
            raise ConfigError(f"no change is called {name!r}", where="--change", why=f"there are {known}")
        make(value, _noter(name))
    return {"change": f"changed: {', '.join(config.change)}"} if config.change else {}


def _noter(name: str) -> Note:
    @functools.cache
    def note(what: str) -> None:
        folder = os.environ.get("HYPOCENTER_RUN")
        if folder:
            with (Path(folder) / CHANGES_FILE).open("ab") as file:
                file.write(msgspec.json.encode((name, what)) + b"\n")

    return note
