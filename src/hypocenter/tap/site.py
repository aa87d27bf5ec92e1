"""A module (of torch) or a cell (of MindSpore) as a tap sees it: its names, and its calls in the micro-batch."""

from __future__ import annotations

import weakref
from typing import Any

from hypocenter.tap.weakly import Ref


class Site:
    """What is decided once about a module. The counters belong to the micro-batch in `stamp`.

    Args:
        thing: the module or cell; only a weak reference is kept.
        names: all of them, in the model's own order.
        wanted: whether it is recorded.
        kind: the user's name of its class.
    """

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

    def __init__(self, thing: Any, names: tuple[str, ...], wanted: bool, kind: str) -> None:
        self.ref: weakref.ref[Any] = Ref(thing)
        self.names = names if len(names) > 1 else ()
        self.name = names[0] if names else ""
        self.module = kind
        self.wanted = wanted
        self.stamp = (-1, -1)  # step, micro-batch
        self.calls = self.recomputes = 0
        self.has_grad_hooks = False  # the true forward of this micro-batch set some: a recompute must not set more
        # calls under way: (call, recompute, hooks wanted)
        self.open: list[tuple[int, bool, bool]] = []
        self.outer: Site | None = None  # of the OptimizedModule around it, which then speaks for both

    def next_call(self, stamp: tuple[int, int], recompute: bool) -> int:
        """Return the number of a call that begins; recomputes count apart, so that n-th means the same in both."""
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
