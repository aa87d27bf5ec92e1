"""Do something to a module as soon as the program has imported it, if it ever does."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def when_imported(name: str, then: Callable[[], None]) -> None:
    """Call `then` now if `name` is imported, else once its module has been executed. Errors in it are ignored."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Finder(name, then))


class _Finder:
    """An import hook that overrides the loader's `exec_module` of the module `name` until it has run (as in boot)."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._asking: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Let the other finders find the module, and arm the loader of what they found."""
        me = threading.get_ident()
        if fullname != self._name or me in self._asking:
            return None
        self._asking.add(me)
        try:
            asked = [finder.find_spec for finder in list(sys.meta_path) if finder is not self]
            spec = next((found for ask in asked if (found := ask(fullname, path, target)) is not None), None)
        finally:
            self._asking.discard(me)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._arm(spec.loader)
        return spec

    def _arm(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            with contextlib.suppress(AttributeError):
                del loader.exec_module
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                with contextlib.suppress(Exception):  # another version of it: the program's import must not fail
                    self._then()

        with contextlib.suppress(AttributeError):  # a loader with slots: leave it alone
            loader.exec_module = exec_module
