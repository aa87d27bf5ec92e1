"""Which sites are recorded, and what is decided once per module: its names, class, and whether it is wanted."""

from __future__ import annotations

import weakref
from fnmatch import fnmatchcase

from torch import nn

from hypocenter.config import Config
from hypocenter.tap.names import NameMap, class_name, unwrap, wrapped_attribute


def is_wanted(names: tuple[str, ...], config: Config) -> bool:
    """Whether one of a site's names matches `sites` (all when empty) and none matches `exclude`."""
    matches = not config.sites or any(fnmatchcase(name, glob) for name in names for glob in config.sites)
    return matches and not any(fnmatchcase(name, glob) for name in names for glob in config.exclude)


class Site:
    """A module as the tap sees it. The counters belong to the micro-batch in `stamp`."""

    __slots__ = (
        "calls",
        "has_grad_hooks",
        "module",
        "name",
        "names",
        "open",
        "outer",
        "recomputes",
        "ref",
        "stamp",
        "wanted",
    )

    def __init__(self, module: nn.Module, names: tuple[str, ...], wanted: bool) -> None:
        self.ref = weakref.ref(module)
        self.names = names if len(names) > 1 else ()
        self.name = names[0] if names else ""
        self.module = class_name(unwrap(module))
        self.wanted = wanted
        self.stamp = (-1, -1)  # step, micro-batch
        self.calls = self.recomputes = 0
        self.has_grad_hooks = False  # the true forward of this micro-batch set some: a recompute must not set more
        # calls under way: (call, recompute, hooks wanted, kwargs taken)
        self.open: list[tuple[int, bool, bool, bool]] = []
        self.outer: Site | None = None  # of the OptimizedModule around it, which then speaks for both

    def next_call(self, stamp: tuple[int, int], recompute: bool) -> int:
        """The number of a call that begins; recomputes are counted apart, so that n-th means the same in both."""
        if self.stamp != stamp:
            self.stamp = stamp
            self.calls = self.recomputes = 0
            self.has_grad_hooks = False
            self.open.clear()
        if recompute:
            self.recomputes += 1
            return self.recomputes - 1
        self.calls += 1
        return self.calls - 1


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
        wanted = bool(names) and (is_compiled or not wrapped_attribute(module)) and is_wanted(names, self._config)
        self._generation = self._names.generation  # the look-up may have refreshed the names
        site = self._known[id(module)] = Site(module, names, wanted)
        if is_compiled and unwrap(module) is not module:
            self.of(unwrap(module)).outer = site
        return site
