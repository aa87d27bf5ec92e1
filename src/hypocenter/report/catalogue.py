"""Which formats there are: the files of `formats/`, and what other packages register as `hypocenter.formats`."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from hypocenter.catalogue import Broken
from hypocenter.errors import UnknownNameError
from hypocenter.report import formats as _folder
from hypocenter.report.nearest import nearest

GROUP = "hypocenter.formats"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One rendering: `render(recording, diagnosis)` gives the text of a file that ends in `suffix`."""

    name: str
    suffix: str
    about: str
    render: Callable[[Any, Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """All formats by name, and the ones that did not load."""

    by_name: dict[str, Format]
    broken: tuple[Broken, ...] = ()


def built_in() -> tuple[str, ...]:
    """Names of the formats that come with Hypocenter; imports none of them."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(_folder.__path__)))


def load() -> Formats:
    """Import every format. A plug-in that fails is put among the broken ones."""
    found = {name: _described(name, import_module(f"{_folder.__name__}.{name}")) for name in built_in()}
    broken: list[Broken] = []
    for point in entry_points(group=GROUP):
        try:
            found.setdefault(point.name, _described(point.name, point.load()))
        except Exception as error:  # a stranger's code: whatever it raises must not stop the command
            broken.append(Broken(name=point.name, error=f"{type(error).__name__}: {error}"))
    return Formats(by_name=found, broken=tuple(broken))


def by_name(name: str) -> Format:
    """The format of this name; built-in ones are found without importing the others.

    Raises:
        UnknownNameError: nobody knows it; names the nearest.
    """
    if name in built_in():
        return _described(name, import_module(f"{_folder.__name__}.{name}"))
    known = load()
    if name in known.by_name:
        return known.by_name[name]
    raise UnknownNameError(
        f"no report format is called {name!r}",
        where="--format",
        why=f"there are {', '.join(sorted(known.by_name))}",
        fix=nearest(name, sorted(known.by_name)),
    )


def _described(name: str, module: ModuleType) -> Format:
    about = (module.__doc__ or "").strip().partition("\n")[0]
    return Format(name=name, suffix=module.suffix, about=about, render=module.render)
