"""Draws from the generators of Python and NumPy, and seeds of theirs and torch's: which line, and what state it found.

The functions of the modules `random` and `numpy.random` stand for a hidden generator each; they are replaced by ones
that note the call and do the same. Generators that a program makes itself (`numpy.random.default_rng`) are noted where
they are made.
"""

from __future__ import annotations

import functools
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch

PYTHON, NUMPY, TORCH = "random", "numpy.random", "torch cpu"
FIRST = 16  # draws of one line that are all noted; then each that is a power of two
_NOT_DRAWS = frozenset(
    {"seed", "getstate", "setstate", "get_state", "set_state", "get_bit_generator", "set_bit_generator"}
)

Note = Callable[[str, str, str, "int | None", str, "FrameType | None"], None]
"""(kind, name, generator, state, note, frame of the caller)"""


class Draws:
    """Replaces the functions that draw random numbers. They stay replaced until `undo`."""

    def __init__(self, note: Note) -> None:
        self._note = note
        self._counts: dict[tuple[str, str, int], int] = {}
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[str, int | None] = {}  # state of each generator when it was last looked at
        self._is_known: set[str] = set()  # generators that were drawn from or seeded since, and it was noted

    def attach(self) -> Callable[[], None]:
        """Replace the functions; returns the undo."""
        for name, function in list(vars(random).items()):
            if getattr(function, "__self__", None) is random._inst and name not in _NOT_DRAWS:  # type: ignore[attr-defined]
                self._put(random, name, self._drawing(f"random.{name}", PYTHON, function))
        hidden: Any = getattr(np.random.mtrand, "_rand", None)
        for name, function in list(vars(np.random).items()):
            if hidden is not None and getattr(function, "__self__", None) is hidden and name not in _NOT_DRAWS:
                self._put(np.random, name, self._drawing(f"numpy.random.{name}", NUMPY, function))
        self._put(random, "seed", self._seeding("random.seed", PYTHON, random.seed))
        self._put(np.random, "seed", self._seeding("numpy.random.seed", NUMPY, np.random.seed))
        self._put(np.random, "default_rng", self._making(np.random.default_rng))
        for place in (torch, torch.random):
            self._put(place, "manual_seed", self._seeding("torch.manual_seed", TORCH, torch.random.manual_seed))
            self._put(place, "seed", self._seeding("torch.seed", TORCH, torch.random.seed))
        return self._detach

    def unseen(self) -> Iterator[tuple[str, int | None]]:
        """Yield (generator, the state before) of those that were drawn from without our seeing since the last call."""
        for generator in (PYTHON, NUMPY):
            now = state_of(generator)
            before = self._seen.get(generator, now if _is_fresh(generator) else None)
            if now != before and generator not in self._is_known:
                yield generator, now if before is None else before
            self._seen[generator] = now
        self._is_known.clear()

    def forked(self) -> None:
        """Count draws anew in a forked child."""
        self._counts.clear()

    def _detach(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _put(self, place: Any, name: str, function: Any) -> None:
        original = getattr(place, name)
        setattr(place, name, function)
        self._undo.append(lambda: setattr(place, name, original))

    def _drawing(self, name: str, generator: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            self._is_known.add(generator)
            if self._is_due(name, frame):
                self._note("draw", name, generator, state_of(generator), "", frame)
            return function(*args, **kwargs)

        return wrapper

    def _seeding(self, name: str, generator: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._is_known.add(generator)
            given = [*args, *kwargs.values()]
            note = _short(given[0]) if given and given[0] is not None else ""
            state = zlib.crc32(repr(given).encode()) if note else state_of(generator)
            self._note("seed", name, generator, state, note, sys._getframe(1))
            return result

        return wrapper

    def _making(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            given = [*args, *kwargs.values()]
            note = _short(given[0]) if given and given[0] is not None else ""
            state = zlib.crc32(repr(made.bit_generator.state).encode())
            self._note("seed", "numpy.random.default_rng", "numpy.random.Generator", state, note, sys._getframe(1))
            return made

        return wrapper

    def _is_due(self, name: str, frame: FrameType) -> bool:
        key = name, frame.f_code.co_filename, frame.f_lineno
        n = self._counts[key] = self._counts.get(key, 0) + 1
        return n <= FIRST or n & (n - 1) == 0


def state_of(generator: str) -> int | None:
    """Return a digest of the state of a hidden generator."""
    if generator == PYTHON:
        _, words, gauss = random.getstate()
        return zlib.crc32(repr(gauss).encode(), hash(words) & 0xFFFF_FFFF)  # of numbers: not salted
    if generator == NUMPY:
        state: Any = np.random.get_state(legacy=False)
        return zlib.crc32(repr((state["state"]["pos"], state["gauss"])).encode(), zlib.crc32(state["state"]["key"]))
    return zlib.crc32(torch.default_generator.get_state().numpy().tobytes())


def _is_fresh(generator: str) -> bool:
    """Return whether nothing was drawn since the generator was made.

    A Mersenne Twister stands at the end of its 624 words then, one of NumPy's without a seed at the last of them.
    """
    state: Any = np.random.get_state(legacy=False)
    position = random.getstate()[1][-1] if generator == PYTHON else state["state"]["pos"]
    return position in (623, 624)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
