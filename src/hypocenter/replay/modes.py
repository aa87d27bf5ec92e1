"""Modules that are in another mode, training or evaluation, than in any healthy step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Generator, Mapping, Sequence

from torch import nn

LEAST = 2  # healthy steps that tell which mode is usual


class Modes:
    """Modes that healthy steps had."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[nn.Module, list[int]] = weakref.WeakKeyDictionary()

    def learn(self, modes: Mapping[nn.Module, bool]) -> None:
        """Take in those of a healthy step."""
        for module, is_training in modes.items():
            self._seen.setdefault(module, [0, 0])[is_training] += 1

    def switched(self, modes: Mapping[nn.Module, bool]) -> Sequence[nn.Module]:
        """Modules in a mode that no healthy step had them in."""
        return [m for m, is_training in modes.items() if self._is_new(self._seen.get(m), is_training)]

    @staticmethod
    def _is_new(seen: Sequence[int] | None, is_training: bool) -> bool:
        return seen is not None and not seen[is_training] and seen[not is_training] >= LEAST


@contextlib.contextmanager
def turned(modules: Sequence[nn.Module]) -> Generator[None, None, None]:
    """Each of these modules, not those in it, in the other mode."""
    flags = [(module, module.training) for module in modules]
    try:
        for module, flag in flags:
            module.training = not flag
        yield
    finally:
        for module, flag in flags:
            module.training = flag
