"""The items: the TOML files of this folder, of packages that have some (`hypocenter.items`), and the user's own."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata, resources
from pathlib import Path

import msgspec

from hypocenter.checklist.items.item import Group, Item, Items
from hypocenter.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENTRY_POINTS = "hypocenter.items"


def load(paths: Sequence[Path] = ()) -> Items:
    """The built-in items, those of other packages, then those of `paths` (files or folders of TOML files).

    A later item of the same key takes the place of the earlier one.

    Raises:
        ConfigError: a file that cannot be read or says something that is no item; names file and place.
    """
    return _gathered([*_built_in(), *_of_packages(), *(read(file) for path in paths for file in _files(path))])


def read(file: Path) -> Group:
    """One file. Raises ConfigError."""
    try:
        return parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the items cannot be read", where=str(file), why=str(error), fix="give a TOML file of items"
        ) from error


def parse(text: str, where: str) -> Group:
    """The items that a text says. Raises ConfigError; `where` is told in it."""
    try:
        return msgspec.convert(tomllib.loads(text), type=Group)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(
            "the items are not as they should be", where=where, why=str(error),
            fix="see docs/checklist.md for what an item has",
        ) from error  # fmt: skip


@cache
def _built_in() -> tuple[Group, ...]:
    files = resources.files("hypocenter.checklist.items").iterdir()
    texts = [(file.name, file.read_text(encoding="utf-8")) for file in files if file.name.endswith(".toml")]
    return tuple(parse(text, name) for name, text in sorted(texts))


def _of_packages() -> Iterator[Group]:
    for point in metadata.entry_points(group=ENTRY_POINTS):
        found = point.load()  # a path, or a function that gives one
        path = Path(str(found() if callable(found) else found))
        yield from (read(file) for file in _files(path))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.toml"))
    if not found:
        raise ConfigError("a folder without items", where=str(path), fix="put TOML files of items into it")
    return found


def _gathered(groups: Iterable[Group]) -> Items:
    ordered = sorted(groups, key=lambda group: group.order)
    headings: dict[str, str] = {}
    words: dict[str, tuple[tuple[str, ...], ...]] = {}
    for group in ordered:
        if group.title or group.group not in headings:
            headings.setdefault(group.group, group.title or group.group)
        for kind, lists in group.words.items():
            words[kind] = (*words.get(kind, ()), *lists)
    by_key: dict[str, Item] = {}
    for group in ordered:
        for item in group.item:
            alike = (*item.words, *words.get(item.kind, ()))
            by_key[item.key] = msgspec.structs.replace(item, group=item.group or group.group, words=alike)
    place = {name: i for i, name in enumerate(headings)}
    return Items(by_key=dict(sorted(by_key.items(), key=lambda pair: place[pair[1].group])), groups=headings)
