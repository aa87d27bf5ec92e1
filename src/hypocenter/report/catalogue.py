"""Which formats there are: the files of `formats/`, and what other packages register as `hypocenter.formats`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hypocenter.catalogue import Broken, Catalogue
from hypocenter.errors import UnknownNameError
from hypocenter.report.wording import nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One rendering: `render(recording, diagnosis)` gives the text of a file that ends in `suffix`."""

    name: str
    suffix: str
    about: str
    render: Callable[[Any, Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """All formats by name, and those that did not load."""

    by_name: dict[str, Format]
    broken: tuple[Broken, ...] = ()


def _described(name: str, module: ModuleType) -> Format:
    about = (module.__doc__ or "").strip().partition("\n")[0]
    return Format(name=name, suffix=module.suffix, about=about, render=module.render)


FORMATS: Catalogue[Format] = Catalogue("hypocenter.report.formats", "hypocenter.formats", _described)


def load() -> Formats:
    """Import every format; a plug-in that fails is put among the broken ones."""
    return Formats(by_name=FORMATS.entries(), broken=tuple(FORMATS.broken))


def by_name(name: str) -> Format:
    """Return the format of this name; built-in ones are found without importing the others.

    Raises:
        UnknownNameError: nobody knows it; names the nearest.
    """
    found = FORMATS.get(name)
    if found is None:
        known = list(FORMATS.entries())
        raise UnknownNameError(
            f"no report format is called {name!r}",
            where="--format",
            why=f"there are {', '.join(known)}",
            fix=nearest(name, known),
        )
    return found
