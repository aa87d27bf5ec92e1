"""Which kinds of configuration there are, and how the kind of a file is told: by its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hypocenter.catalogue import Catalogue, about
from hypocenter.checklist.checklist import Given
from hypocenter.checklist.nested import Node, parse

AT_MOST_BYTES = 16 << 20  # of a configuration; a log may be longer, of which only the start is looked at


@dataclass(frozen=True)
class Source:
    """A file, or a folder, as readers see it. `nodes`: of JSON, YAML and TOML what it holds, else None."""

    path: Path
    is_directory: bool
    start: bytes  # at most AT_MOST_BYTES
    is_whole: bool

    @property
    def name(self) -> str:
        """The name of the file alone, which stands in places."""
        return self.path.name

    @cached_property
    def is_text(self) -> bool:
        """Whether the start of the file looks like text: it has no zero byte."""
        return not self.is_directory and b"\0" not in self.start

    @cached_property
    def text(self) -> str:
        """The start of the file as text."""
        return self.start.decode("utf-8-sig", errors="replace")

    @cached_property
    def node(self) -> Node | None:
        """What a file of JSON, YAML or TOML holds; None for another. Raises ConfigurationError when it is damaged."""
        return parse(self.text, self.path) if self.is_text and self.is_whole else None

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys at the top level of the file."""
        return frozenset(self.node.mapping) if self.node is not None else frozenset()

    def inside(self, *keys: str) -> frozenset[str]:
        """Return the keys of the mapping found under these keys, one within the other; empty if there is none."""
        node = self.node
        for key in keys:
            node = node.mapping.get(key) if node is not None else None
        return frozenset(node.mapping) if node is not None else frozenset()

    def at(self, *keys: str) -> Any:
        """Return the scalar found under these keys; None when there is none."""
        node = self.node
        for key in keys:
            node = node.mapping.get(key) if node is not None else None
        return node.scalar if node is not None else None


Accepts = Callable[[Source], float]
Read = Callable[[Source], Given]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of configuration. `accepts` says how sure it is, 0 (not mine) to 1."""

    name: str
    about: str
    accepts: Accepts
    read: Read


READERS: Catalogue[Reader] = Catalogue("hypocenter.checklist.readers", "hypocenter.configuration_readers")


def reader(name: str, *, accepts: Accepts) -> Callable[[Read], Read]:
    """Register a function as the reader of this kind; the first line of its docstring says what is read."""
    return READERS.adding(name, lambda read: Reader(name=name, about=about(read), accepts=accepts, read=read))
