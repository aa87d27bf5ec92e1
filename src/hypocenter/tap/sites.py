"""Which sites are recorded, and what is decided once per module: its names, class, and whether it is wanted."""

from __future__ import annotations

from torch import nn

from hypocenter.config import Config
from hypocenter.tap.compile_guard import is_export
from hypocenter.tap.names import NameMap, class_name, unwrap, wrapped_attribute
from hypocenter.tap.site import Site
from hypocenter.tap.wanted import is_wanted


class Sites:
    """module -> Site, decided once and again after the names have changed."""

    def __init__(self, names: NameMap, config: Config) -> None:
        self._names, self._config = names, config
        self._generation = names.generation
        self._known: dict[int, Site] = {}

    def of(self, module: nn.Module) -> Site:
        """The Site of a module. Strangers, and wrappers but for compiled modules, have one that is not wanted."""
        if self._generation != self._names.generation:
            self._generation = self._names.generation
            self._known.clear()
        site = self._known.get(id(module))
        if site is None or site.ref() is not module:
            site = self._decide(module)
        return site

    def forget_calls(self) -> None:
        """Count the calls of the micro-batch under way from 0; not of modules that are being called."""
        for site in self._known.values():
            if not site.open:
                site.stamp = (-1, -1)

    def _decide(self, module: nn.Module) -> Site:
        names = self._names.module_names(module)
        # Inside a compiled module no hook runs, but what goes in and comes out can be read around it.
        is_compiled = type(module).__name__ == "OptimizedModule"
        is_whole = is_compiled and not is_export(module)
        wanted = bool(names) and (is_whole or not wrapped_attribute(module)) and is_wanted(names, self._config)
        self._generation = self._names.generation  # the look-up may have refreshed the names
        site = self._known[id(module)] = Site(module, names, wanted, class_name(unwrap(module)))
        if is_compiled and unwrap(module) is not module:
            self.of(unwrap(module)).outer = site
        return site
