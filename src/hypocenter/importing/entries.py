"""A large JSON object entry by entry: what `json.load` would take whole, with a bound on memory.

Reads what Python's own writer writes, so the bare tokens NaN, Infinity and -Infinity are numbers. A file that is cut
off gives every whole entry, and one line about the rest.

Numbers that a program gave to its APIs, as attributes of the modules that called them: eps, p, dim.

A dump of APIs holds every argument. Those of a module that calls an API once are what the module was made with.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hypocenter.importing.text import writable_tree
from hypocenter.record.facts_file import Facts, ModuleFacts, TensorFacts

PIECE = 1 << 20  # characters read at a time
LONGEST_NAME = 1024  # bytes of what `last_of` finds
AT_MOST = 64 << 20  # characters of one entry; a real one of a thousand tensors has half a megabyte
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[0-9.eE+-]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER = json.JSONDecoder()
# Place of an argument: its name, of torch.nn.functional and torch; https://docs.pytorch.org/docs/stable/nn.functional.html
_PLACES: dict[str, dict[int, str]] = {
    "layer_norm": {1: "normalized_shape", 4: "eps"}, "rms_norm": {1: "normalized_shape", 3: "eps"},
    "group_norm": {1: "num_groups", 4: "eps"}, "batch_norm": {6: "momentum", 7: "eps"},
    "instance_norm": {6: "momentum", 7: "eps"}, "normalize": {1: "p", 2: "dim", 3: "eps"},
    "dropout": {1: "p"}, "softmax": {1: "dim"}, "log_softmax": {1: "dim"}, "leaky_relu": {1: "negative_slope"},
    "elu": {1: "alpha"}, "celu": {1: "alpha"}, "hardtanh": {1: "min_val", 2: "max_val"}, "threshold": {1: "threshold"},
    "scaled_dot_product_attention": {4: "dropout_p", 5: "is_causal"}, "embedding": {2: "padding_idx", 3: "max_norm"},
}  # fmt: skip
_LEFT_OUT = frozenset({"inplace", "training", "_stacklevel", "out", "requires_grad"})
_TEXT_AT_MOST = 60
_MOST = 200_000  # modules


class _Damaged(Exception):
    """The text is no JSON from here on."""


def entries(path: Path, inside: str, say: Callable[[str], None]) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the object at key `inside` of the outermost object, in the order of the file.

    What is beside it comes as ("", {key: value}) first, as far as it stands before it. With `inside` empty the entries
    are those of the outermost object itself.

    Args:
        path: the file.
        inside: a key, or "".
        say: takes one line when the file is damaged; what came before stays.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("r", encoding="utf-8", errors="replace", newline="") as file:
        text = _Text(file.read)
        try:
            text.expect("{")
            if not inside:
                yield from _members(text)
                return
            beside: dict[str, Any] = {}
            for key in _keys(text):
                if key == inside:
                    yield "", beside
                    text.expect("{")
                    yield from _members(text)
                else:
                    beside[key] = text.value()
        except _Damaged as error:
            say(f"{path.name}: {error}")
        except RecursionError:
            say(f"{path.name}: nested too deeply after {text.n_entries:,} entries")


def last_of(path: Path, ending: str) -> str:
    """Return the last string of the file that ends so, searched from its end; "" when none of a name's length does."""
    mark = f'{ending}"'.encode()
    with path.open("rb") as file:
        at = file.seek(0, os.SEEK_END)
        tail = b""
        while at:
            at, end = max(0, at - PIECE), at
            file.seek(at)
            held = file.read(end - at) + tail
            found = held.rfind(mark)
            if found >= 0 and (found > LONGEST_NAME or not at):
                begin = held.rfind(b'"', 0, found) + 1
                name = held[begin : found + len(ending)]
                return name.decode("utf-8", "replace") if begin and len(name) <= LONGEST_NAME else ""
            tail = held[: LONGEST_NAME + len(mark)]
    return ""


def _members(text: _Text) -> Iterator[tuple[str, Any]]:
    for key in _keys(text):
        value = text.value()
        text.n_entries += 1
        yield key, value


def _keys(text: _Text) -> Iterator[str]:
    """Yield the keys of an object whose brace has been read; the caller reads each value."""
    mark = text.next()
    if mark == "}":
        return
    while True:
        if mark != '"':
            raise _Damaged(f"no key where one must be, after {text.n_entries:,} entries")
        text.back()
        key = text.value()
        text.expect(":")
        yield key
        mark = text.next()
        if mark == "}":
            return
        if mark != ",":
            raise _Damaged(f"no comma where one must be, after {text.n_entries:,} entries")
        mark = text.next()


class _Text:
    """A window that moves over the text of the file."""

    def __init__(self, read: Callable[[int], str]) -> None:
        self.n_entries = 0
        self._read, self._held, self._at, self._is_over = read, "", 0, False

    def next(self) -> str:
        """Return the next character that is no space."""
        while True:
            self._at = _SPACE.match(self._held, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._held):
                self._at += 1
                return self._held[self._at - 1]
            if not self._more(PIECE):
                raise _Damaged(f"cut off after {self.n_entries:,} entries")

    def back(self) -> None:
        """Go back by the character that `next` gave."""
        self._at -= 1

    def expect(self, mark: str) -> None:
        """Go past a mark. Raises _Damaged when another character stands here."""
        if self.next() != mark:
            raise _Damaged(f"no {mark} where one must be, after {self.n_entries:,} entries")

    def value(self) -> Any:
        """Return the JSON value that stands here."""
        self.next()
        self.back()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self._at)
            except ValueError as error:
                why = str(error).partition(":")[0]
            else:
                tail = _NUMBER.match(self._held, end)
                may_go_on = tail is not None and tail.end() == len(self._held)
                why = "a number without an end" if isinstance(value, (int, float)) else ""
                if not may_go_on or (self._is_over and not why):
                    is_escaped = _SURROGATE.search(self._held, self._at, end) is not None
                    self._at = end
                    return writable_tree(value) if is_escaped else value
            held = len(self._held) - self._at
            if held > AT_MOST:
                raise _Damaged(f"an entry is larger than {AT_MOST >> 20} MiB, after {self.n_entries:,} entries")
            if not self._more(max(PIECE, held)) and why:
                raise _Damaged(f"cut off or damaged after {self.n_entries:,} entries ({why})")

    def _more(self, n: int) -> bool:
        piece = "" if self._is_over else self._read(n)
        self._is_over = not piece
        self._held, self._at = self._held[self._at :] + piece, 0
        return bool(piece)


class Attributes:
    """Gathers what a rank's first step tells of modules."""

    def __init__(self) -> None:
        self._kind: dict[str, str] = {}
        self._attributes: dict[str, dict[str, Any]] = {}
        self._calls: Counter[tuple[str, str]] = Counter()
        self._parameters: dict[str, dict[str, TensorFacts]] = {}

    def module(self, site: str, kind: str) -> None:
        """Add a module."""
        if len(self._kind) < _MOST:
            self._kind.setdefault(site, kind)

    def parameter(self, site: str, kind: str, name: str, shape: tuple[int, ...], dtype: str, *, trained: bool) -> None:
        """Add a parameter of a module."""
        self.module(site, kind)
        self._parameters.setdefault(site, {})[name] = TensorFacts(shape=shape, dtype=dtype, trained=trained)

    def call(self, site: str, api: str, args: Any, kwargs: Any) -> None:
        """Add an API that a module called; an argument that differs between two calls is no attribute."""
        if site not in self._attributes and len(self._attributes) >= _MOST:
            return
        found = self._attributes.setdefault(site, {})
        self._calls[site, api] += 1
        for name, value in _named(api, args, kwargs):
            if name in found and found[name] != value:
                found[name] = None
            else:
                found.setdefault(name, value)

    def facts(self) -> Facts:
        """Return everything that was added."""
        modules = [
            ModuleFacts(
                path=site, kind=kind, parameters=self._parameters.get(site, {}),
                attributes={n: v for n, v in self._attributes.get(site, {}).items() if v is not None},
            )
            for site, kind in self._kind.items()
        ]  # fmt: skip
        return Facts(modules=tuple(modules))


def _named(api: str, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    given: list[tuple[str, Any]] = []
    for place, name in _PLACES.get(api, {}).items():
        if isinstance(args, list) and place < len(args):
            given.append((name, args[place]))
    if isinstance(kwargs, Mapping):
        given += [(str(name), value) for name, value in kwargs.items()]
    found = ((name, _plain(value)) for name, value in given if name not in _LEFT_OUT)
    return [(name, value) for name, value in found if value is not None]


def _plain(leaf: Any) -> int | float | bool | str | None:
    value = leaf.get("value") if isinstance(leaf, Mapping) and "dtype" not in leaf else None
    if isinstance(value, str):
        return value[:_TEXT_AT_MOST]
    return value if isinstance(value, (bool, int, float)) and abs(value) < 1e300 else None
