"""One file's entries against one names table: each becomes a setting, is set aside, or stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypocenter.catalogue import Catalogue
from hypocenter.checklist.checklist import Entry, Given, Setting, Value
from hypocenter.checklist.tables import Table, table
from hypocenter.checklist.words import boolean, canonical, whole

_AT_MOST_NOTES = 200
Settle = Callable[["FileEntries"], None]
FRAMEWORKS: Catalogue[Settle] = Catalogue("hypocenter.checklist.frameworks", "hypocenter.configuration_frameworks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one file gives to a side."""

    kind: str
    order: int  # of its defaults among those of the side
    settings: Mapping[str, Setting] = field(default_factory=dict)  # said, or computed from what was said
    assumed: Mapping[str, Setting] = field(default_factory=dict)  # defaults of the framework
    unknown: tuple[Setting, ...] = ()
    set_aside: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()


class FileEntries:
    """The entries of one file; rules of a framework put together what keys say only together."""

    def __init__(self, given: Given, table: Table) -> None:
        self.table, self.given = table, given
        self.notes: list[str] = []
        self._entries: dict[str, Entry] = {}
        self._said: dict[str, Setting] = {}
        self._assumed: dict[str, Setting] = {}
        self._keys: dict[str, tuple[str, ...]] = {}  # by item: the keys that its setting tells
        self._repeated: list[Entry] = []
        for note in given.notes:
            self.note(note)
        for entry in given.entries:
            self._add(entry)

    def note(self, text: str) -> None:
        """Add something to tell the user, once."""
        if text not in self.notes and len(self.notes) < _AT_MOST_NOTES:
            self.notes.append(text)

    def value(self, key: str, default: Value = None) -> Value:
        """Return the value of a key as the file has it; `default` when it is absent, empty or cannot be told."""
        entry = self._entries.get(key)
        return default if entry is None or entry.value is None or not entry.is_resolved else entry.value

    def says(self, *keys: str) -> bool:
        """Return whether any of the keys is there with a value, be it one that cannot be told."""
        return any(self.value(key) is not None or self.is_lost(key) for key in keys)

    def first(self, *keys: str) -> str | None:
        """Return the first of the keys that is there with a value; None when none is."""
        return next((key for key in keys if self.says(key)), None)

    def number(self, *keys: str) -> Any:
        """Return the number that the first of the keys says; None when it says none, or none is there."""
        key = self.first(*keys)
        found = whole(self.value(key)) if key else None
        return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    def is_on(self, key: str, default: bool = False) -> bool:
        """Return whether a switch is on."""
        return boolean(self.value(key, default)) is True

    def is_lost(self, key: str) -> bool:
        """Return whether the key is there with a value that cannot be told from the file."""
        return key in self._entries and not self._entries[key].is_resolved

    def has(self, key: str) -> bool:
        """Return whether the key is there, with a value or without."""
        return key in self._entries

    def present(self) -> tuple[str, ...]:
        """Return all keys that are there."""
        return tuple(self._entries)

    def said(self, item: str) -> Value:
        """Return the value that an item has so far, said or assumed."""
        found = self._said.get(item) or self._assumed.get(item)
        return None if found is None else found.value

    def set(self, item: str, value: Value, *keys: str, derived: str | None = None) -> None:
        """Set an item to a value that these keys say; absent keys are not named."""
        entries = [self._entries[key] for key in keys if key in self._entries]
        self._keys[item] = tuple(entry.key for entry in entries)
        lost = next((entry for entry in entries if not entry.is_resolved), None)
        self._said[item] = Setting(
            item=item, value=None if lost else canonical(item, value), derived=derived,
            spelled=", ".join(entry.spelled for entry in entries), where=entries[0].where if entries else "",
            unresolved=f"{lost.spelled}: the file alone does not say what this is" if lost else None,
        )  # fmt: skip

    def assume(self, item: str, value: Value, derived: str | None = None) -> None:
        """Set what the framework takes for an item when nobody says it."""
        self._assumed[item] = Setting(
            item=item, value=value, spelled="", assumed=self.table.defaults_of or self.table.framework, derived=derived
        )

    def forget(self, item: str) -> None:
        """Take back an assumed value that does not hold here."""
        self._assumed.pop(item, None)

    def start(self) -> None:
        """Set items that one key says alone, and the framework's defaults."""
        for item, value in self.table.defaults.items():
            self.assume(item, value)
        for key, entry in self._entries.items():
            item, is_opposite = self.table.item_of(key)
            if not item or (entry.value is None and entry.is_resolved):
                continue
            value = canonical(item, self._translated(key, entry.value))
            earlier = self._said.get(item)
            if earlier is not None and earlier.value != value:
                self.note(f"{entry.where}: {entry.spelled} takes the place of {earlier.spelled} ({earlier.where})")
            self.set(item, not value if is_opposite and isinstance(value, bool) else value, key)

    def close(self) -> Part:
        """Return everything; each entry of the file is in one of its lists."""
        used = {key for keys in self._keys.values() for key in keys}
        loose = [entry for key, entry in self._entries.items() if key not in used] + self._repeated
        says_nothing = [entry.value is None and entry.is_resolved for entry in loose]
        known = [quiet or self.table.knows(entry.key) for entry, quiet in zip(loose, says_nothing, strict=True)]
        aside = [entry for entry, is_known in zip(loose, known, strict=True) if is_known]
        unknown = [entry for entry, is_known in zip(loose, known, strict=True) if not is_known]
        return Part(
            kind=self.given.kind, order=self.table.order, settings=self._said, assumed=self._assumed,
            unknown=tuple(map(_loose, unknown)), set_aside=tuple(map(_loose, aside)), notes=tuple(self.notes),
        )  # fmt: skip

    def _add(self, entry: Entry) -> None:
        earlier = self._entries.get(entry.key)
        if earlier is not None:
            self._repeated.append(earlier)
            if earlier.value != entry.value and (earlier.value is not None or not earlier.is_resolved):
                self.note(f"{entry.where}: {entry.spelled} takes the place of {earlier.spelled} ({earlier.where})")
            self._entries.pop(entry.key)
        self._entries[entry.key] = entry

    def _translated(self, key: str, value: Value) -> Value:
        words = self.table.words.get(key)
        if not words or isinstance(value, tuple):
            return value
        return words.get(str(value), words.get(str(value).lower(), value))


def _loose(entry: Entry) -> Setting:
    why = None if entry.is_resolved else "the file alone does not say what this is"
    return Setting(item="", value=entry.value, spelled=entry.spelled, where=entry.where, unresolved=why)


def framework(name: str) -> Callable[[Settle], Settle]:
    """Register a function as the rules of the table of this name."""
    return FRAMEWORKS.adding(name, lambda settle: settle)


def settle(given: Given) -> Part:
    """Return the settings that the entries of one file come to."""
    sheet = FileEntries(given, table(given.table))
    sheet.start()
    rules = FRAMEWORKS.entries().get(given.table)
    if rules is not None:
        rules(sheet)
    return sheet.close()
