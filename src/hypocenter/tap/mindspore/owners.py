"""Which optimizer parameters belong to: a step that a loss scaler skips does not call it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from hypocenter.tap.mindspore.names import optimizer_classes
from hypocenter.tap.mindspore.updates import parameters_of


class Owners:
    """Finds optimizers among what the program holds, once for each list of parameters."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any] | None] = {}  # id of the first parameter -> its optimizer

    def of(self, parameters: Sequence[Any]) -> Any | None:
        """Return the optimizer whose first parameter is the first of these; None without exactly one."""
        if not parameters:
            return None
        key = id(parameters[0])
        if key not in self._known:
            firsts = [(each, parameters_of(each)[:1]) for each in all_optimizers()]
            found = [each for each, first in firsts if first and first[0] is parameters[0]]
            self._known[key] = weakref.ref(found[0]) if len(found) == 1 else None
        known = self._known[key]
        return None if known is None else known()


def all_optimizers() -> list[Any]:
    """Return all optimizers that the program holds. Takes as long as one pass of the garbage collector."""
    kinds = tuple(optimizer_classes())
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]
