"""Do something of ours without changing which warnings the program shows.

Python shows a warning once for each line, and forgets all that it has shown when the filters change, if only for a
moment: by `warnings.catch_warnings`, in whose midst many packages are imported. The program's own would come again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator
from typing import Any

_FORGET = [name for name in ("_filters_mutated", "_filters_mutated_lock_held") if hasattr(warnings, name)]


@contextlib.contextmanager
def unwarned() -> Generator[None, None, None]:
    """Show, count and raise no warning inside."""
    filters: Any = warnings.filters  # changed as a list, of which Python is not told
    silence = ("ignore", None, Warning, None, 0)
    filters.insert(0, silence)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # somebody has emptied the list meanwhile
            filters.remove(silence)


class StillShown:
    """A context in which `catch_warnings` does not make Python forget which warnings it has shown."""

    __slots__ = ("_filters", "_forget")

    def __enter__(self) -> None:
        self._filters = [*warnings.filters]
        self._forget: list[Any] = []
        for name in _FORGET:
            self._forget.append(getattr(warnings, name))
            setattr(warnings, name, _nothing)

    def __exit__(self, *_: object) -> None:
        for name, forget in zip(_FORGET, self._forget, strict=True):
            setattr(warnings, name, forget)
        if self._filters != warnings.filters:
            with warnings.catch_warnings():  # they have changed for good
                pass


def _nothing() -> None:
    """Do nothing: stands for a moment in the place of what makes Python forget."""
