"""A JSON value in, as much of it as fits out, with what was cut and how to ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypocenter.errors import ConfigError

MOST_CHARACTERS = 20_000  # of an answer as JSON: about 6,000 tokens
_LEAST = 200  # characters below which a part is left out, to be asked for
_FEW_KEYS = 32  # of an object all of whose keys are shown; others are cut as lists are


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A list, an object or a text of which not all was given: the rest begins at `start`, of `of` items."""

    at: str  # a JSON Pointer (RFC 6901) into the whole answer
    start: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The part of a value that fits, and what was cut from it."""

    value: Any
    cut: list[Cut] = field(default_factory=list)


def page(value: Any, *, at: str = "", start: int = 0, most: int = MOST_CHARACTERS) -> Page:
    """Return the part of a value at a place, from an item on, as much as fits.

    Args:
        value: what `json.loads` gives.
        at: a JSON Pointer into it; empty for the whole.
        start: items of the list, keys of the object or characters of the text that were given before.
        most: characters, about.

    Raises:
        ConfigError: nothing stands there.
    """
    found = Page(value=None)
    part = _part(value, at)
    if start < 0 or (start and start >= _length(part)):
        raise ConfigError(f"nothing begins at {start}", where=f"at {at!r}", why=f"it has {_length(part)} items")
    return Page(value=_fitted(part, at, start, max(most, _LEAST), found.cut), cut=found.cut)


def _part(value: Any, at: str) -> Any:
    for word in at.split("/")[1:] if at else ():
        key = word.replace("~1", "/").replace("~0", "~")
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ConfigError(
                "the answer has no such part", where=f"at {at!r}", fix="take one from `cut`, or leave `at` out"
            ) from error
    if at and not at.startswith("/"):
        raise ConfigError("this is no JSON Pointer", where=f"at {at!r}", fix="such as /findings/0/why")
    return value


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict, str)) else 1


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def _fitted(value: Any, at: str, start: int, room: int, cut: list[Cut]) -> Any:
    if not isinstance(value, (str, list, dict)) or (not start and _size(value) <= room):
        return value
    if room < _LEAST:
        cut.append(Cut(at=at, start=start, of=len(value)))
        return type(value)()
    if isinstance(value, str):
        return _of_text(value, at, start, room, cut)
    if isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(cast(list[Any], value))]
        return [item for _, item in _first(items, at, start, room, cut)]
    found = cast(dict[str, Any], value)
    if start or len(found) > _FEW_KEYS:
        return dict(_first(list(found.items()), at, start, room, cut))
    return _shared(found, at, room, cut)


def _of_text(value: str, at: str, start: int, room: int, cut: list[Cut]) -> str:
    end = start + room
    while _size(value[start:end]) > room + 2:  # what is escaped takes more
        end = start + (end - start) // 2
    if end < len(value):
        cut.append(Cut(at=at, start=end, of=len(value)))
    return value[start:end]


def _first(
    items: Sequence[tuple[str, Any]], at: str, start: int, room: int, cut: list[Cut]
) -> Iterator[tuple[str, Any]]:
    """Yield whole items as long as they fit; the first of a page in any case, cut inside where it does not fit."""
    for index in range(start, len(items)):
        key, value = items[index]
        size = _size(value) + len(key) + 6
        if index > start and size > room:
            cut.append(Cut(at=at, start=index, of=len(items)))
            return
        yield key, _fitted(value, f"{at}/{_escaped(key)}", 0, room, cut)
        room -= size


def _shared(value: Mapping[str, Any], at: str, room: int, cut: list[Cut]) -> dict[str, Any]:
    """Return small parts whole; the large ones share the room that is left."""
    shares: dict[str, int] = {}
    for n_left, key in zip(range(len(value), 0, -1), sorted(value, key=lambda key: _size(value[key])), strict=True):
        shares[key] = room // n_left
        room -= min(_size(value[key]), shares[key]) + len(key) + 6
    return {key: _fitted(inner, f"{at}/{_escaped(key)}", 0, shares[key], cut) for key, inner in value.items()}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
