"""The catalogue of changes: each file of `changes/` is one, a function that is given what was asked and answers.

Its docstring is its manual page. A file of another package is found by the entry point `hypocenter.twins`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypocenter.catalogue import Catalogue
from hypocenter.errors import ConfigError, UnknownNameError
from hypocenter.manual import Manual, page_of
from hypocenter.twins.answer import Twin
from hypocenter.twins.runs import Runs

CATALOGUE: Catalogue[Change] = Catalogue("hypocenter.twins.changes", "hypocenter.twins")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a change is asked to do."""

    runs: Runs
    value: str = ""  # behind CHANGE=
    steps: int = 3
    deterministic: bool = False
    seed: int | None = None
    stop_at: int | None = None
    checkpoint: str = ""
    first_words: tuple[str, ...] = ()  # that the program gets in the run without the change, after its own
    second_words: tuple[str, ...] = ()  # and in the run with it

    def number(self, default: int, least: int = 1) -> int:
        """Return the value as a whole number, `default` if none was given.

        Raises:
            ConfigError: it is none, or too small.
        """
        if not self.value:
            return default
        if not self.value.isdecimal() or int(self.value) < least:
            raise ConfigError(
                f"{self.value!r} is no number for this change",
                where="CHANGE=NUMBER",
                fix=f"give a whole number, at least {least}",
            )
        return int(self.value)


Make = Callable[[Asked], Twin]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change: one entry of the catalogue."""

    name: str
    make: Make
    order: int
    values: str = ""  # what can stand behind CHANGE=
    manual: Manual = field(default_factory=lambda: Manual(message=""))


def change(name: str, *, order: int, values: str = "") -> Callable[[Make], Make]:
    """Register a change.

    Args:
        name: as it is typed.
        order: its place in the list.
        values: in words, what may be given as CHANGE=VALUE.
    """
    return CATALOGUE.adding(
        name, lambda make: Change(name=name, make=make, order=order, values=values, manual=page_of(make))
    )


def changes() -> dict[str, Change]:
    """Return all changes by name, in their order."""
    return {one.name: one for one in CATALOGUE.in_order()}


def by_name(name: str) -> Change:
    """Return the change of this name.

    Raises:
        UnknownNameError: there is none of this name.
    """
    known = changes()
    if name not in known:
        raise UnknownNameError(
            f"no change is called {name!r}",
            where="CHANGE of hypocenter twin",
            why=f"there are {', '.join(known)}",
            fix="see `hypocenter twin --list`",
        )
    return known[name]
