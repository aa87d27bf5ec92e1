"""Names tables: one TOML file = one framework, its keys and what it takes when nobody says a thing.

framework    how a person calls it
defaults_of  whose defaults these are, with the version they were looked up in
order        of tables whose defaults meet on one side, the lowest wins
[names]      key = item; "!item" when the key says the opposite
[words.KEY]  what its words are in the item's: {LayerNorm = "layernorm"}
[joined]     `keys` that mean something only together with others; checklist/frameworks/ puts them together.
             `*` stands for any text
[set_aside]  `keys` that are known and have no meaning for numbers; `*` as above
[defaults]   "item" = value, in the item's words and units
[flags]      of a command line: flag = [key, value], for flags that stand for a key and a value of another name
[negated]    `keys` that a flag `no_KEY` turns off
[switches]   `keys` of flags that take no value
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from hypocenter.checklist.checklist import Scalar
from hypocenter.toml import tomllib


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """A list of keys, in which `*` stands for any text."""

    keys: tuple[str, ...] = ()

    def has(self, key: str) -> bool:
        """Return whether one of the keys is, or stands for, this key."""
        return any(key == known or fnmatch.fnmatchcase(key, known) for known in self.keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The keys of one framework."""

    framework: str
    defaults_of: str = ""
    order: int = 50
    names: dict[str, str] = field(default_factory=dict[str, str])
    words: dict[str, dict[str, Scalar]] = field(default_factory=dict[str, dict[str, Scalar]])
    joined: Keys = field(default_factory=Keys)
    set_aside: Keys = field(default_factory=Keys)
    defaults: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    flags: dict[str, tuple[str, Scalar]] = field(default_factory=dict[str, "tuple[str, Scalar]"])
    negated: Keys = field(default_factory=Keys)
    switches: Keys = field(default_factory=Keys)

    def __post_init__(self) -> None:
        """Add the flags of negated keys."""
        self.flags.update({f"no_{key}": (key, False) for key in self.negated.keys})

    def item_of(self, key: str) -> tuple[str, bool]:
        """Return the item of a key and whether the key says the opposite; ("", False) when there is none."""
        found = self.names.get(key, "")
        return found.lstrip("!"), found.startswith("!")

    def knows(self, key: str) -> bool:
        """Return whether the table has the key at all."""
        return key in self.names or self.joined.has(key) or self.set_aside.has(key)


@cache
def table(name: str) -> Table:
    """Return one table by the stem of its file."""
    return msgspec.convert(read_toml(name), type=Table)


@cache
def names() -> tuple[str, ...]:
    """Return the stems of all tables that hold keys; without those of defaults alone (`*_models`)."""
    folder = resources.files("hypocenter.checklist.names")
    stems = (file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    return tuple(sorted(stem for stem in stems if not stem.endswith("_models")))


@cache
def read_toml(name: str) -> dict[str, Any]:
    """Read one file of the folder of tables."""
    file = resources.files("hypocenter.checklist.names") / f"{name}.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
