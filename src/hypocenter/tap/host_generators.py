"""The states of the global generators of Python and NumPy, asked for anew only when somebody has drawn since.

Each call of a model needs them. To ask makes 625 numbers of Python's and copies an array, and most programs draw with
neither while they train. So the memory of a generator is compared with what it was; it is never read as numbers. Where
that memory does not show each draw, which is tried out once, the state is asked for each time.
"""

from __future__ import annotations

import _random
import ctypes
import functools
import random
import sys
from collections.abc import Callable
from typing import Any

_HEAD = object.__basicsize__  # bytes: number of references and type
_MT19937_BYTES = 624 * 4 + 4  # mt19937_state of NumPy: its words, and the place among them


class _Asked:
    """A function that gives the state of a generator, and what that has last given."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask, self.owner = ask, getattr(ask, "__self__", None)
        self._memory, self._state = b"", None

    def state(self, memory: bytes) -> Any:
        """The state, as long as this is the generator's memory; empty: it does not tell."""
        if not memory or memory != self._memory:
            self._state, self._memory = self.ask(), memory  # what is drawn meanwhile is not in this memory
        return self._state


_asked = {"python": _Asked(random.getstate), "numpy": _Asked(tuple)}


def python_state() -> Any:
    """As `random.getstate()`."""
    asked = _asked["python"]
    if asked.ask is not random.getstate:
        asked = _asked["python"] = _Asked(random.getstate)
    owner = asked.owner
    return asked.state(_of_python(owner) if _shows_draws() and isinstance(owner, random.Random) else b"")


def numpy_state() -> Any:
    """As `numpy.random.get_state()`; None in a program without NumPy."""
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    asked = _asked["numpy"]
    if asked.owner is None or asked.owner is not getattr(numpy.get_state, "__self__", None):
        asked = _asked["numpy"] = _Asked(numpy.get_state)
    return asked.state(_of_numpy(asked.owner) if _shows_numpy_draws() else b"")


def _of_python(owner: random.Random) -> bytes:
    gauss: Any = getattr(owner, "gauss_next", None)  # what `gauss` has left for its next call
    return b"" if gauss is not None else _bytes(owner, _random.Random.__basicsize__)


def _of_numpy(owner: Any) -> bytes:
    source: Any = getattr(owner, "_bit_generator", None)
    if type(source).__name__ != "MT19937" or type(owner).__name__ != "RandomState":
        return b""
    return _bytes(owner, type(owner).__basicsize__) + ctypes.string_at(source.ctypes.state_address, _MT19937_BYTES)


def _bytes(owner: object, size: int) -> bytes:
    return ctypes.string_at(id(owner) + _HEAD, size - _HEAD)


@functools.cache
def _shows_draws() -> bool:
    own = random.Random(0)
    return sys.implementation.name == "cpython" and _differ(lambda: _of_python(own), [own.random] * 3)


@functools.cache
def _shows_numpy_draws() -> bool:
    numpy: Any = sys.modules["numpy.random"]
    own = numpy.RandomState(0)  # the second normal number is what the first one has left: no word is drawn for it
    draws = [own.standard_normal, own.standard_normal, own.random_sample, own.standard_normal]
    return sys.implementation.name == "cpython" and _differ(lambda: _of_numpy(own), draws)


def _differ(memory: Callable[[], bytes], draws: list[Callable[[], Any]]) -> bool:
    """Whether each draw changes the memory, and nothing else does."""
    try:
        found = [memory()]
        for draw in draws:
            if memory() != found[-1]:
                return False
            draw()
            found.append(memory())
    except Exception:  # another version, which keeps it elsewhere
        return False
    return b"" not in found and len(set(found)) == len(found)
