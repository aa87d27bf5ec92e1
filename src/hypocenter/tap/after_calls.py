"""Who wants to hear of calls of certain modules once they have returned: also inside others, and inside backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hypocenter.tap.weakly import Ref

AfterCall = Callable[[Any, Any, Any], None]
"""Gets the module, its positional arguments and its output. Must not raise."""


class AfterCalls:
    """Those that wait for calls of modules. As long as there are any, every call of a module costs a look-up."""

    def __init__(self) -> None:
        self._hearers: dict[int, list[tuple[weakref.ref[Any], AfterCall]]] = {}

    def __bool__(self) -> bool:
        return bool(self._hearers)

    def __contains__(self, module: Any) -> bool:
        return id(module) in self._hearers

    def add(self, module: Any, hear: AfterCall) -> Callable[[], None]:
        """Call `hear` after each call of this module from the next one on; returns the undo."""
        key, entry = id(module), (Ref(module), hear)
        self._hearers.setdefault(key, []).append(entry)

        def remove() -> None:
            hearers = self._hearers.get(key, [])
            if entry in hearers:
                hearers.remove(entry)
            if not hearers:
                self._hearers.pop(key, None)

        return remove

    def tell(self, module: Any, args: Any, output: Any) -> None:
        """Tell those who wait that a module has returned."""
        for ref, hear in list(self._hearers.get(id(module), ())):
            if ref() is module:
                hear(module, args, output)
