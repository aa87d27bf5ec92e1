"""Which renderings of a comparison there are: the files of this folder that have a function `render`."""

from __future__ import annotations

from collections.abc import Callable

from hypocenter.catalogue import Catalogue
from hypocenter.compare.comparison import Comparison
from hypocenter.errors import UnknownNameError
from hypocenter.report.wording import nearest

Render = Callable[[Comparison], str]
RENDERINGS: Catalogue[Render] = Catalogue(
    "hypocenter.report.comparison", entry=lambda _, module: getattr(module, "render", None)
)


def names() -> tuple[str, ...]:
    """Return the names of all renderings."""
    return tuple(RENDERINGS.entries())


def by_name(name: str) -> Render:
    """Return the rendering of this name, without importing the others.

    Raises:
        UnknownNameError: there is none; names the nearest.
    """
    found = RENDERINGS.get(name)
    if found is None:
        why, fix = f"there are {', '.join(names())}", nearest(name, names())
        raise UnknownNameError(f"no rendering of a comparison is called {name!r}", where="--format", why=why, fix=fix)
    return found
