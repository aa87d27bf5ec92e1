"""Which modules or cells are recorded, decided once and again after the names have changed."""

from __future__ import annotations

from typing import Any, Protocol

from hypocenter.tap.site import Site


class Names(Protocol):
    """Names of modules or cells; `generation` changes with them."""

    generation: int


class Sites:
    """Maps modules or cells to their Sites. A framework's class says in `_decide` which are wanted."""

    def __init__(self, names: Names) -> None:
        self._of_names = names
        self._generation = names.generation
        self._known: dict[int, Site] = {}

    def of(self, module: Any) -> Site:
        """Return the Site of a module. Strangers and wrappers have one that is not wanted."""
        if self._generation != self._of_names.generation:
            self._generation = self._of_names.generation
            self._known.clear()
        site = self._known.get(id(module))
        if site is None or site.ref() is not module:
            names = self._names_of(module)
            self._generation = self._of_names.generation  # the look-up may have refreshed the names
            site = self._known[id(module)] = self._decide(module, names)
        return site

    def forget_calls(self) -> None:
        """Count the calls of the micro-batch under way from 0 again, but not those of modules that are being called."""
        for site in self._known.values():
            if not site.open:
                site.stamp = (-1, -1)

    def _names_of(self, module: Any) -> tuple[str, ...]:
        raise NotImplementedError

    def _decide(self, module: Any, names: tuple[str, ...]) -> Site:
        raise NotImplementedError
