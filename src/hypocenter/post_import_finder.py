"""Do something as soon as, and only if, a module is imported.

Executed by path in every Python process of a job (boot/post_import.py): standard library only, and nothing is imported
that `site` has not loaded already.
"""

from __future__ import annotations

import _thread
import sys

TYPE_CHECKING = False  # importing typing would cost every process of the job 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class PostImportFinder:
    """Meta path finder that lets the others find `name`, and calls `then` once after its module has been executed.

    The loader stays the one that was found, with `exec_module` overridden on the instance until it has run: what looks
    at `__spec__` or `__loader__` (find_spec, reload, inspect, importlib.resources) sees what it would have seen.

    Args:
        name: of a module that is not imported yet.
        then: is called by the thread that has imported it.
        warn: is told in a sentence of a module that cannot be followed.
    """

    def __init__(self, name: str, then: Callable[[], None], warn: Callable[[str], object] = str) -> None:
        self._name, self._then, self._warn = name, then, warn
        self._asking: set[int] = set()  # threads inside find_spec: another tool's finder may ask us back
        self._once = _thread.allocate_lock()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders give for `name`, its loader armed; None for every other module."""
        if fullname != self._name or _thread.get_ident() in self._asking:
            return None
        self._asking.add(_thread.get_ident())
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(_thread.get_ident())
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._arm(spec.loader)
        return spec

    def _ask_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            ask = None if finder is self else getattr(finder, "find_spec", None)
            spec = ask(fullname, path, target) if ask else None
            if spec is not None:
                return spec
        return None

    def _arm(self, loader: Any) -> None:
        original = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            original(module)
            _disarm(loader)
            self._executed()

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader with slots: leave it alone rather than stand in for it
            self._warn(f"{self._name} is loaded by {type(loader).__name__}, which cannot be followed")

    def _executed(self) -> None:
        if self._once.acquire(blocking=False):  # never released: two copies of the spec still start one session
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._then()


def _disarm(loader: Any) -> None:
    try:
        del loader.exec_module
    except AttributeError:
        return
