"""A catalogue: a folder in which each file is one thing, an entry point for third parties, and `--plugin` files.

Built-ins and third parties come through the same door: importing the file runs its decorator, which registers.
A file that cannot be imported is listed in `broken` and never fatal.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from hypocenter.errors import ConfigError, UnknownNameError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A catalogue file that could not be used."""

    name: str
    error: str


class Catalogue(Generic[T]):
    """Entries by key, filled by importing the files of `package`, of the entry points `group` and of plug-ins."""

    def __init__(self, package: str, group: str) -> None:
        self.package, self.group = package, group
        self.broken: list[Broken] = []
        self._entries: dict[str, T] = {}
        self._loaded: set[str] = set()

    def register(self, key: str, entry: T) -> None:
        """Add an entry; a key that is taken is refused, so that a plug-in cannot silently replace a built-in."""
        if key in self._entries:
            raise UnknownNameError(f"{key!r} is registered twice", where=self.package, fix="give it another name")
        self._entries[key] = entry

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
        """Everything registered so far, sorted by key (load first)."""
        self.load()
        return dict(sorted(self._entries.items()))

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
        broken = Broken(name=name, error=f"{type(error).__name__}: {error}")
        if broken not in self.broken:
            self.broken.append(broken)

    def _scan_folder(self) -> None:
        folder = importlib.import_module(self.package)
        for info in pkgutil.iter_modules(folder.__path__):
            self._attempt(info.name, lambda name=info.name: importlib.import_module(f"{self.package}.{name}"))

    def _scan_entry_points(self) -> None:
        for point in metadata.entry_points(group=self.group):
            self._attempt(point.name, point.load)

    def _attempt(self, name: str, load: object) -> None:
        before = set(self._entries)
        try:
            load()  # type: ignore[operator]
        except Exception as error:  # whatever a stranger's file raises, it is only listed
            for key in set(self._entries) - before:
                del self._entries[key]
            self.report(name, error)


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
