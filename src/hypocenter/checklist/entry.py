"""What a reader finds: keys and values as a file has them, before any table says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypocenter.checklist.configuration import Value
from hypocenter.errors import HypocenterError


class ConfigurationError(HypocenterError):
    """A file that is no configuration we know, or is damaged."""

    slug = "bad-configuration"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key with its value."""

    key: str  # dotted for what is nested: "optimizer.betas"
    value: Value
    spelled: str  # "--num-layers 24", "num_layers: 24"
    where: str = ""  # "train.sh:17"
    is_resolved: bool = True  # False: it is said, but with what cannot be told from the file: "--tp $1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """All that one file says to one framework. `table`: stem of the names table."""

    kind: str  # name of the reader
    table: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    alongside: tuple[Given, ...] = field(default=())  # what else the file says: its launcher, its environment


Note = Callable[[str], None]
