"""Sinks by name: from the folder `record/sinks`, from plug-in files, and from the entry point `hypocenter.sinks`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, TypeVar

from hypocenter.catalogue import import_plugin
from hypocenter.errors import ConfigError, UnknownNameError
from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record import sinks

ENTRY_POINT = "hypocenter.sinks"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStart:
    """What a sink is told when it is opened."""

    rank: int = 0
    world_size: int = 1
    directory: Path | None = None  # the run directory, if there is one
    where: str = ""  # what stood behind the name, `--sink NAME=WHERE`: a folder, an address
    ending: Callable[[], None] = lambda: None  # to call when the sink's own tool ends before training does


class Sink(Protocol):
    """Where readings and findings go beside the store. Whatever it raises switches it off, never the run."""

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Take one step."""
        ...

    def finding(self, finding: Finding) -> None:
        """Take one finding."""
        ...

    def close(self) -> None:
        """End the sink; called once."""
        ...


Open = Callable[[SinkStart], Sink]
_Opener = TypeVar("_Opener", bound=Open)
_registered: dict[str, Open] = {}


def sink(name: str) -> Callable[[_Opener], _Opener]:
    """Register a class (or a function) that opens a sink, under the name used in `--sink NAME`."""

    def register(opener: _Opener) -> _Opener:
        _registered[name] = opener
        return opener

    return register


class Sinks:
    """Several sinks as one; each that fails is switched off with one warning."""

    def __init__(self, opened: dict[str, Sink], warn: Callable[[str], None]) -> None:
        self._live = opened
        self._warn = warn

    @property
    def names(self) -> list[str]:
        """The names of the sinks that are still on."""
        return list(self._live)

    @property
    def ask_at_end(self) -> bool:
        """Whether any sink wants to be told what is found at the end of training (`asks_at_end = False`: no)."""
        return any(getattr(one, "asks_at_end", True) for one in self._live.values())

    def __getitem__(self, name: str) -> Sink:
        return self._live[name]

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Give one step to every sink."""
        self._each(lambda one: one.write(readings, step))

    def finding(self, finding: Finding) -> None:
        """Give one finding to every sink."""
        self._each(lambda one: one.finding(finding))

    def close(self) -> None:
        """Close every sink; afterwards there is none."""
        self._each(lambda one: one.close())
        self._live = {}

    def _each(self, act: Callable[[Sink], None]) -> None:
        for name, one in list(self._live.items()):
            try:
                act(one)
            except Exception as error:
                self._live.pop(name, None)
                self._warn(f"sink {name!r} failed and is switched off ({_reason(error)})")


def load_sinks(
    names: Sequence[str],
    plugins: Sequence[str] = (),
    *,
    start: SinkStart | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Sinks:
    """Open the named sinks; one that exists but cannot be opened is left out with a warning.

    Args:
        names: of the folder, of a plug-in, or of an installed package; each may say where it writes, `NAME=WHERE`.
        plugins: Python files or modules that use the decorator `sink`.
        start: what the sinks are told.
        warn: takes one line of text for each sink that fails, now or later.

    Raises:
        UnknownNameError: no sink has such a name.
        ConfigError: a plug-in does not exist or cannot be imported.
    """
    for plugin in plugins:
        _import(plugin)
    opened: dict[str, Sink] = {}
    for asked in names:
        name, _, where = asked.partition("=")
        opener = _find(name, warn)
        if opener is None:
            continue
        try:
            opened[name] = opener(replace(start or SinkStart(), where=where))
        except Exception as error:
            warn(f"sink {name!r} cannot be opened ({_reason(error)})")
    return Sinks(opened, warn)


def unknown_sinks(names: Sequence[str]) -> list[str]:
    """Return the names that no sink has among those asked for, `NAME` or `NAME=WHERE`."""
    known = sink_names()
    return [name for name in dict.fromkeys(asked.partition("=")[0] for asked in names) if name not in known]


def sink_names() -> list[str]:
    """Return every name that `load_sinks` knows, sorted; nothing is imported for it."""
    return sorted({*_built_in(), *_registered, *(e.name for e in entry_points(group=ENTRY_POINT))})


def _built_in() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(sinks.__path__)]


def _find(name: str, warn: Callable[[str], None]) -> Open | None:
    """Return the opener of a name; None when its package is broken. Built-in ones go before installed ones."""
    try:
        if name in _built_in():
            importlib.import_module(f"{sinks.__name__}.{name}")
        elif name not in _registered:
            for point in entry_points(group=ENTRY_POINT, name=name):
                _registered[name] = point.load()
    except Exception as error:
        warn(f"sink {name!r} cannot be loaded ({type(error).__name__}: {error})")
        return None
    if name not in _registered:
        raise UnknownNameError(f"no sink is called {name!r}", where="--sink", fix=f"known: {', '.join(sink_names())}")
    return _registered[name]


def _reason(error: Exception) -> str:
    """Return an error in one line: the answer of a data base may be a page."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _import(plugin: str) -> None:
    try:
        import_plugin(plugin)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ConfigError("a plug-in cannot be loaded", where=plugin, why=why, fix="mend it or leave it out") from error
