"""Cell -> Site: its names, its class, and whether it is recorded, decided once and again after names have changed."""

from __future__ import annotations

from typing import Any

from hypocenter.config import Config
from hypocenter.tap.mindspore.names import NameMap, unwrap
from hypocenter.tap.site import Site
from hypocenter.tap.wanted import is_wanted


class Sites:
    """Strangers (optimizers, losses made on the way) and MindSpore's wrappers have a Site that is not wanted."""

    def __init__(self, names: NameMap, config: Config) -> None:
        self._names, self._config = names, config
        self._generation = names.generation
        self._known: dict[int, Site] = {}

    def of(self, cell: Any) -> Site:
        """The Site of a cell."""
        if self._generation != self._names.generation:
            self._generation = self._names.generation
            self._known.clear()
        site = self._known.get(id(cell))
        if site is None or site.ref() is not cell:
            site = self._decide(cell)
        return site

    def forget_calls(self) -> None:
        """Count the calls of the micro-batch under way from 0; not of cells that are being called."""
        for site in self._known.values():
            if not site.open:
                site.stamp = (-1, -1)

    def _decide(self, cell: Any) -> Site:
        names = self._names.cell_names(cell)
        wanted = bool(names) and unwrap(cell) is cell and is_wanted(names, self._config)
        self._generation = self._names.generation  # the look-up may have refreshed the names
        site = self._known[id(cell)] = Site(cell, names, wanted, type(cell).__name__)
        return site
