"""Do something of ours without changing which warnings the program shows.

Python shows a warning once for each line, and forgets all that it has shown when the filters change, if only for a
moment: by `warnings.catch_warnings`, in whose midst many packages are imported. The program's own would come again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
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


def still_shown(method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function so that `catch_warnings` does not make Python forget meanwhile which warnings it has shown."""
    filters, forget = [*warnings.filters], list(map(_THERE.__getitem__, _FORGET))
    _THERE.update(_SILENT)
    try:
        return method(*args, **kwargs)
    finally:
        _THERE.update(zip(_FORGET, forget, strict=True))
        if filters != warnings.filters:
            with warnings.catch_warnings():  # they have changed for good
                pass


def _nothing() -> None:
    """Do nothing: stands for a moment in the place of what makes Python forget."""


_THERE: dict[str, Any] = vars(warnings)  # type: ignore[assignment]
_SILENT = dict.fromkeys(_FORGET, _nothing)
