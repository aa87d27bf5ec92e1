"""`workers=N`: every DataLoader gets N workers; `workers=own`: as many as it was given, at least two.

What a dataset draws at random would differ with the number of workers in good programs too: each has a generator of its
own. So all generators that a fetch can reach (Python's, NumPy's, torch's, those that are attributes of the dataset) are
held: seeded by the indices that are fetched. Before the first fetch in a worker it is noted in which state each of them
is, and after it whether it was drawn from: two workers that begin in the same state draw the same numbers.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils import fetch as fetching

Note = Callable[[str], None]
LEAST = 2  # workers, of `own`
_DEPTH = 3  # attributes of attributes of a dataset that are looked at
_MOST = 1000  # objects
_OF_WORKERS = {"prefetch_factor": None, "persistent_workers": False, "timeout": 0, "multiprocessing_context": None}
"""Arguments that need workers, and what they are without."""


@dataclass(frozen=True, slots=True)
class _Generator:
    """A generator of whatever library: what gives its state, what sets it, what seeds it."""

    get: Callable[[], Any]
    set: Callable[[Any], Any]
    seed: Callable[[int], Any]


def begin(value: str, note: Note) -> None:
    """Replace the constructor of DataLoader, and how batches are fetched."""
    _number_workers(value, note)
    fetch = fetching._MapDatasetFetcher.fetch
    seen: list[int] = []

    @functools.wraps(fetch)
    def held(self: Any, index: Any) -> Any:
        generators = dict(_generators(self.dataset))
        before = {name: one.get() for name, one in generators.items()}
        seed = zlib.crc32(repr(index).encode())
        for one in generators.values():
            one.seed(seed)
        seeded = {name: _digest(one.get()) for name, one in generators.items()}
        try:
            return fetch(self, index)
        finally:
            info = get_worker_info()
            drawn = [name for name, one in generators.items() if _digest(one.get()) != seeded[name]]
            if info is not None and info.id not in seen:
                seen.append(info.id)
                for name in drawn:
                    note(f"worker {info.id} draws from {name} at {_digest(before[name])}")
            for name, one in generators.items():
                one.set(before[name])

    fetching._MapDatasetFetcher.fetch = held  # type: ignore[method-assign]
    stream = fetching._IterableDatasetFetcher.__init__

    @functools.wraps(stream)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        note("an iterable dataset is read")
        stream(self, *args, **kwargs)

    fetching._IterableDatasetFetcher.__init__ = noted  # type: ignore[method-assign]


def _number_workers(value: str, note: Note) -> None:
    original = DataLoader.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        own = int(given.arguments.get("num_workers", 0) or 0)
        number = max(own, LEAST) if value == "own" else int(value)
        given.arguments["num_workers"] = number
        if not number:
            given.arguments.update({name: off for name, off in _OF_WORKERS.items() if name in given.arguments})
        note(f"a DataLoader of {own} workers gets {number}")
        original(*given.args, **given.kwargs)

    DataLoader.__init__ = __init__  # type: ignore[method-assign]


def _generators(dataset: Any) -> Iterator[tuple[str, _Generator]]:
    """Yield all generators that a fetch can reach, by name."""
    yield "torch", _Generator(torch.get_rng_state, torch.set_rng_state, torch.default_generator.manual_seed)
    yield "random", _Generator(random.getstate, random.setstate, random.seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        yield "numpy.random", _Generator(numpy.random.get_state, numpy.random.set_state, numpy.random.seed)
    yield from _within(dataset, numpy)


def _within(dataset: Any, numpy: Any) -> Iterator[tuple[str, _Generator]]:
    """Yield the generators that are attributes of the dataset, or of what it holds."""
    waiting, known = [("dataset", dataset, 0)], {id(dataset)}
    while waiting and len(known) < _MOST:
        path, one, depth = waiting.pop(0)
        found = _as_generator(one, numpy)
        if found is not None:
            yield path, found
        elif depth < _DEPTH:
            for name, inner in _parts(one):
                if id(inner) not in known and not isinstance(inner, (str, bytes, int, float, torch.Tensor, type)):
                    known.add(id(inner))
                    waiting.append((f"{path}{name}", inner, depth + 1))


def _parts(one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        yield from ((f"[{key!r}]", value) for key, value in list(one.items())[:_MOST])
    elif isinstance(one, (list, tuple)):
        yield from ((f"[{n}]", value) for n, value in enumerate(one[:16]))
    else:
        yield from ((f".{name}", value) for name, value in getattr(one, "__dict__", {}).items())


def _as_generator(one: Any, numpy: Any) -> _Generator | None:
    if isinstance(one, torch.Generator):
        return _Generator(one.get_state, one.set_state, one.manual_seed)
    if isinstance(one, random.Random):
        return _Generator(one.getstate, one.setstate, one.seed)
    if numpy is not None and isinstance(one, numpy.random.RandomState):
        return _Generator(one.get_state, one.set_state, one.seed)
    if numpy is not None and isinstance(one, numpy.random.Generator):
        bits = one.bit_generator

        def set_(state: Any) -> None:
            bits.state = state

        return _Generator(lambda: bits.state, set_, lambda seed: set_(type(bits)(seed).state))
    return None


def _digest(state: Any) -> str:
    """Return a short text that is the same for equal states."""
    plain = state.numpy().tobytes() if isinstance(state, torch.Tensor) else pickle.dumps(state)
    return hashlib.sha256(plain).hexdigest()[:16]
