"""Which renderings of a comparison there are: the files of this folder that say how their text ends (`suffix`)."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module

from hypocenter.compare.comparison import Comparison
from hypocenter.errors import UnknownNameError
from hypocenter.report import comparison as _folder
from hypocenter.report.nearest import nearest

Render = Callable[[Comparison], str]
_NO_RENDERINGS = frozenset({"catalogue", "ranking"})


def names() -> tuple[str, ...]:
    """Names of all renderings; imports none."""
    found = (info.name for info in pkgutil.iter_modules(_folder.__path__) if not info.ispkg)
    return tuple(sorted(name for name in found if name not in _NO_RENDERINGS))


def by_name(name: str) -> Render:
    """The rendering of this name.

    Raises:
        UnknownNameError: there is none; names the nearest.
    """
    if name not in names():
        raise UnknownNameError(
            f"no rendering of a comparison is called {name!r}",
            where="--format",
            why=f"there are {', '.join(names())}",
            fix=nearest(name, names()),
        )
    render: Render = import_module(f"{_folder.__name__}.{name}").render
    return render
