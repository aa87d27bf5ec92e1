"""A catalogue: a folder in which each file is one thing, an entry point for third parties, and `--plugin` files.

A file is found because it lies in the folder: nothing else is edited. Built-ins and third parties come through the same
door: importing the file runs its decorator, which registers, or the module itself is made an entry. Where order
matters, the entry says it (`order`). A file that cannot be imported is listed in `broken` and never fatal; only where
no third party can be to blame, in a catalogue without an entry point, does it raise.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from hypocenter.errors import ConfigError, UnknownNameError

T = TypeVar("T")
F = TypeVar("F")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A catalogue file that could not be used."""

    name: str
    error: str


class Catalogue(Generic[T]):
    """Entries by key, filled by importing the files of `package`, of the entry points `group` and of plug-ins."""

    def __init__(self, package: str, group: str = "", entry: Callable[[str, Any], T | None] | None = None) -> None:
        """Make an empty catalogue. `entry` makes an entry of a module (None: it is none); without it files register."""
        self.package, self.group, self._entry = package, group, entry
        self.broken: list[Broken] = []
        self._entries: dict[str, T] = {}
        self._loaded: set[str] = set()

    def register(self, key: str, entry: T) -> None:
        """Add an entry; a key that is taken is refused, so that a plug-in cannot silently replace a built-in."""
        if key in self._entries:
            raise UnknownNameError(f"{key!r} is registered twice", where=self.package, fix="give it another name")
        self._entries[key] = entry

    def adding(self, key: str, make: Callable[[F], T]) -> Callable[[F], F]:
        """Return a decorator that adds the entry that `make` makes of what it decorates, which it returns as it is."""

        def register(decorated: F) -> F:
            self.register(key, make(decorated))
            return decorated

        return register

    def load(self, plugins: Iterable[str] = ()) -> None:
        """Import the folder, the entry points and the plug-ins that have not been imported yet."""
        if self.package not in self._loaded:
            self._loaded.add(self.package)
            self._scan_folder()
            self._scan_entry_points()
        for plugin in plugins:
            if plugin not in self._loaded:
                self._loaded.add(plugin)
                self._attempt(plugin, lambda name=plugin: import_plugin(name))

    def entries(self) -> dict[str, T]:
        """Return everything registered, sorted by key, after loading the folder."""
        self.load()
        return dict(sorted(self._entries.items()))

    def in_order(self) -> list[T]:
        """Return all entries, by the `order` that each states (100 where it states none), then by key."""
        return sorted(self.entries().values(), key=lambda entry: getattr(entry, "order", 100))

    def names(self) -> tuple[str, ...]:
        """Return the names of the files in the folder, sorted; nothing is imported."""
        return tuple(sorted(info.name for info in self._files()))

    def get(self, name: str) -> T | None:
        """Return the entry of this name, or None; one of the folder is found without importing the others."""
        if name in self.names() and self.package not in self._loaded:
            self._scan_file(name)
        if name not in self._entries:
            self.load()
        return self._entries.get(name)

    def load_asked(self, plugins: Iterable[str]) -> None:
        """Load as `load` does, but what somebody has just asked for by name has to be there.

        Raises:
            ConfigError: one of these plug-ins cannot be loaded.
        """
        asked = tuple(plugins)
        self.load(asked)
        for broken in self.broken:
            if broken.name in asked:
                raise ConfigError(
                    "a plug-in cannot be loaded", where=broken.name, why=broken.error, fix="mend it or leave it out"
                )

    def report(self, name: str, error: BaseException) -> None:
        """List something of this catalogue as broken, once."""
        self.learn([Broken(name=name, error=f"{type(error).__name__}: {error}")])

    def learn(self, broken: Iterable[Broken]) -> None:
        """List what turned out to be broken, here or in another process, once."""
        self.broken += [each for each in dict.fromkeys(broken) if each not in self.broken]

    def _files(self) -> list[pkgutil.ModuleInfo]:
        path = importlib.import_module(self.package).__path__
        return [info for info in pkgutil.iter_modules(path) if not info.ispkg]

    def _scan_file(self, name: str) -> None:
        if name not in self._entries:
            self._attempt(name, lambda: importlib.import_module(f"{self.package}.{name}"))

    def _scan_folder(self) -> None:
        for name in self.names():
            self._scan_file(name)

    def _scan_entry_points(self) -> None:
        for point in metadata.entry_points(group=self.group) if self.group else ():
            self._attempt(point.name, point.load)

    def _attempt(self, name: str, load: Callable[[], Any]) -> None:
        before = set(self._entries)
        try:
            found = load()
            made = self._entry(name, found) if self._entry is not None else None
            if made is not None:
                self.register(name, made)
        except Exception as error:  # whatever a stranger's file raises, it is only listed
            if not self.group:
                raise
            for key in set(self._entries) - before:
                del self._entries[key]
            self.report(name, error)


def about(described: object) -> str:
    """Return the first line of a docstring: what an entry is, for lists of them."""
    return (described.__doc__ or "").strip().partition("\n")[0]


def having(attribute: str) -> Callable[[str, Any], Any]:
    """Return a maker of entries that takes modules that have this attribute; others of the folder only help them."""
    return lambda _, module: module if hasattr(module, attribute) else None


def import_plugin(name: str) -> ModuleType:
    """Import `--plugin` NAME: a path that ends in .py, or a module's dotted name. Each is executed once per process."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    alias = "hypocenter_plugin_" + "".join(c if c.isalnum() else "_" for c in str(Path(name).resolve()))
    if alias in sys.modules:
        return sys.modules[alias]
    spec = importlib.util.spec_from_file_location(alias, name)
    if spec is None or spec.loader is None:
        raise UnknownNameError(f"plug-in {name!r} cannot be loaded", where=name, fix="give a .py file or a module name")
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[alias]
        raise
    return module
