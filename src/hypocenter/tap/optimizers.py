"""The optimizers that the program has made, known before they step for the first time."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable

import torch


class Optimizers:
    """The optimizers by id (not all have a hash), held weakly: programs that make many must not keep them all."""

    def __init__(self) -> None:
        self._made: weakref.WeakValueDictionary[int, torch.optim.Optimizer] = weakref.WeakValueDictionary()
        self._has_looked = False

    def attach(self, on_made: Callable[[], None]) -> Callable[[], None]:
        """Watch for optimizers that are made; returns the undo.

        Args:
            on_made: told as one is about to be made.
        """
        original = torch.optim.Optimizer.__init__
        made = self._made

        @functools.wraps(original)
        def __init__(self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
            on_made()
            original(self, *args, **kwargs)  # type: ignore[arg-type]
            made[id(self)] = self

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]

        def undo() -> None:
            if torch.optim.Optimizer.__init__ is __init__:
                torch.optim.Optimizer.__init__ = original  # type: ignore[method-assign]

        return undo

    def all(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that exist; those made before anybody listened are looked for once, in all objects."""
        if not self._has_looked:
            self._has_looked = True
            kinds = [torch.optim.Optimizer]
            for kind in kinds:  # it grows
                kinds += kind.__subclasses__()
            found = [
                thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds
            ]  # an object refers to its class
            self._made.update((id(each), each) for each in found if "param_groups" in each.__dict__)  # no mere wrapper
        return list(self._made.values())
