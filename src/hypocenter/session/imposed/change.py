"""`--change NAME=VALUE`: what must not matter is set to another value, as `hypocenter twin` does.

Each file of `changes/` is one, with a function `begin(value, note)`. What it really changed in this process, or met and
left, it tells by `note(text)`: a line of changes.jsonl in the run directory, from any process of the job, so that a
change which changed nothing is not taken for one that does not matter.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import msgspec

from hypocenter.config import Config
from hypocenter.errors import ConfigError
from hypocenter.record.layout import CHANGES_FILE
from hypocenter.session.imposed import changes

Note = Callable[[str], None]


def begin(config: Config, warn: Callable[[str], None], folder: ModuleType = changes) -> dict[str, str]:
    """Make the changes that the options ask for; return them in words, under a short name.

    Args:
        folder: the package whose files are the changes.

    Raises:
        ConfigError: there is no change of a name that was given.
    """
    if not config.change:
        return {}
    for asked in config.change:
        name, _, value = asked.partition("=")
        try:
            make = import_module(f"{folder.__name__}.{name}").begin
        except ModuleNotFoundError as error:
            raise ConfigError(f"no change is called {name!r}", where="--change") from error
        make(value, _noter(name))
    return {"change": f"changed: {', '.join(config.change)}"}


def _noter(name: str) -> Note:
    @functools.cache
    def note(what: str) -> None:
        folder = os.environ.get("HYPOCENTER_RUN")
        if folder:
            with (Path(folder) / CHANGES_FILE).open("ab") as file:
                file.write(msgspec.json.encode((name, what)) + b"\n")

    return note
