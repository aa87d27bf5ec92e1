"""Attach the adapter of each framework that is imported, now or when it is imported later."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoints, entry_points
from types import ModuleType

from hypocenter.tap import frameworks
from hypocenter.tap.frameworks.door import Door

GROUP = "hypocenter.frameworks"


def adapters() -> Iterator[ModuleType]:
    """Yield the built-in adapters, then those of installed plug-ins."""
    for info in pkgutil.iter_modules(frameworks.__path__):
        module = importlib.import_module(f"{frameworks.__name__}.{info.name}")
        if hasattr(module, "needs"):
            yield module
    for entry in _plug_ins():
        yield entry.load()


@functools.cache  # all that is installed is read for it, which takes longer than the rest of a session's start
def _plug_ins() -> EntryPoints:
    return entry_points(group=GROUP)


class Frameworks:
    """Attaches adapters of frameworks imported since, at each new outermost module. Costs one set test each."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._waiting: list[ModuleType] = []
        self._undo: list[Callable[[], None]] = []

    def attach(self) -> Callable[[], None]:
        """Attach the adapters of frameworks that are imported; return the undo."""
        try:
            self._waiting = list(adapters())
        except Exception as error:
            self._door.warn(f"a framework plug-in cannot be loaded: {error!r}")
        self.look()

        def undo() -> None:
            for each in self._undo:
                each()

        return undo

    def look(self) -> None:
        """Attach adapters whose framework has been imported meanwhile."""
        for adapter in [a for a in self._waiting if _is_imported(a.needs)]:
            self._waiting.remove(adapter)
            try:
                self._undo.append(adapter.attach(self._door))
            except Exception as error:
                self._door.warn(f"{adapter.needs} is seen through torch only: {error!r}")


def _is_imported(name: str) -> bool:
    """Return whether a module is imported in full: one that imports torch is half there when the session starts."""
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)
