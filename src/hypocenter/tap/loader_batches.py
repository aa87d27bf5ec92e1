"""Which tensors a `DataLoader` has handed out, and from which indices of its dataset it made each batch.

Index lists are drawn in the order in which batches come out, whichever worker makes them. Where a loader was told not
to keep the order, and of iterable datasets, the batches are known and their indices are not.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import random
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    dataloader,
)

from hypocenter.tap.tape import version_of
from hypocenter.tap.tree import tensors
from hypocenter.tap.weakly import Ref

REMEMBERED = 256  # tensors: those of a few batches, also where one is fetched ahead
FOLLOWED, FEWEST = 64, 8  # batches of a pass, and samples in them: fewer may come in one order by chance
_RANDOM = (RandomSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler)
_Iterator: Any = dataloader._BaseDataLoaderIter


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLoader:
    """A tensor that came out of a DataLoader and has not been changed since."""

    name: str  # where it is in the batch: "[0]", "[pixels]"
    indices: tuple[int, ...]  # of the dataset, one for each row; empty: not known
    batch: int = 0  # number of those of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The batch that a DataLoader has handed out last."""

    number: int  # of those of the process
    n_workers: int
    is_stream: bool  # of an IterableDataset, of which each worker has one of its own
    n_samples: int  # of the data set; 0: not known
    n_repeats: int = 0  # passes in a row, up to this one, that a random sampler began as the pass before
    sampler: str = ""  # its class
    alike: str = ""  # what draws the same numbers in each worker
    skips: tuple[str, int, int] | None = None  # data set, first batches that its sampler skips, number of that pass
    in_order: tuple[int, int] | None = None  # first and last index of the data set, where there are just those between


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A pass over a data set of samples by index, whose first batch a DataLoader has handed out."""

    dataset: Callable[[], Any]  # None if it is gone
    collate: Callable[[Any], Any]
    indices: tuple[Any, ...]  # of the batch, in its order
    is_batched: bool  # items are read one by one, and put together
    is_on_host: bool  # all of the batch
    n_workers: int
    is_persistent: bool  # workers stay from pass to pass
    iterator: Callable[[], Any]  # None once the pass is over, and nobody holds it


@dataclass(slots=True)
class _Passes:
    """The passes of one random sampler over its data."""

    run: Any = None  # what draws in this pass
    now: list[int] = field(default_factory=list)  # hashes of its first batches
    before: list[int] = field(default_factory=list)  # of the pass before
    n_samples: int = 0  # in `now`
    n_repeats: int = 0

    def begin(self, run: Any) -> None:
        """Begin a new pass, and count how often passes in a row had the same order."""
        n = min(len(self.now), len(self.before))
        if n and self.n_samples >= FEWEST:
            self.n_repeats = self.n_repeats + 1 if self.now[:n] == self.before[:n] else 0
        if self.now:
            self.before = self.now
        self.run, self.now, self.n_samples = run, [], 0


class LoaderBatches:
    """Follows every DataLoader of the process.

    Args:
        quiet: entered while a batch is made: what the dataset computes is none of the step's own operations.
    """

    def __init__(self, quiet: Callable[[], AbstractContextManager[None]]) -> None:
        self._quiet = quiet
        self._drawn: weakref.WeakKeyDictionary[Any, deque[Any]] = weakref.WeakKeyDictionary()
        self.last: Handed | None = None
        self._latest: dict[tuple[Any, ...], tuple[weakref.ref[Any], _Passes]] = {}  # by kind, samples and batch
        self._alike: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # by iterator
        self._passes: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()  # by sampler
        self._sizes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # of data sets, by iterator
        self._skipping: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # passes, by sampler
        self._skips: tuple[str, int, int] | None = None  # of the last such pass
        self._begun: dict[int, Begun] = {}  # since somebody asked, by id of the data set
        self._n_begun: dict[int, int] = {}  # how often each was given to who asked
        self._given: deque[tuple[weakref.ref[torch.Tensor], int, FromLoader]] = deque(maxlen=REMEMBERED)

    def attach(self) -> Callable[[], None]:
        """Start following; returns the undo."""
        draw, fetch, me = _Iterator._next_index, _Iterator.__next__, self

        @functools.wraps(draw)
        def _next_index(self: Any) -> Any:
            index = draw(self)
            me._drawn.setdefault(self, deque()).append(index)
            me._follow(self, index)
            return index

        @functools.wraps(fetch)
        def __next__(self: Any) -> Any:
            with me._quiet():
                batch = fetch(self)
            me._note(self, batch)
            return batch

        _Iterator._next_index, _Iterator.__next__ = _next_index, __next__

        def undo() -> None:
            if _Iterator._next_index is _next_index:
                _Iterator._next_index = draw
            if _Iterator.__next__ is __next__:
                _Iterator.__next__ = fetch

        return undo

    def of(self, candidates: Sequence[torch.Tensor]) -> FromLoader | None:
        """Return what is known of the first of these tensors that a loader has handed out unchanged; else None."""
        for ref, version, given in self._given:
            tensor = ref()
            if tensor is not None and any(tensor is each for each in candidates) and version_of(tensor) == version:
                return given
        return None

    def begun(self) -> Begun | None:
        """Return a pass that has begun since the last call, and goes on; None if there is none.

        Of several that of the data set which was returned least often. A loader that was read to its end since then
        feeds no step.
        """
        if not self._begun:
            return None
        waiting, self._begun = self._begun, {}
        going_on = [key for key, each in waiting.items() if each.iterator() is not None]
        if not going_on:  # each batch is the first one of an iterator of its own
            going_on = [next(reversed(waiting))]
        key = min(going_on, key=lambda key: self._n_begun.get(key, 0))
        self._n_begun[key] = self._n_begun.get(key, 0) + 1
        return waiting[key]

    def _follow(self, iterator: Any, indices: Any) -> None:
        """Note that one more batch of indices is drawn, to compare this pass with the one before."""
        sampler = _sampler(iterator)
        if not isinstance(sampler, _RANDOM) or not getattr(sampler, "shuffle", True):
            return
        with contextlib.suppress(Exception):  # a sampler of the user's own kind
            passes = self._passes.get(sampler)
            if passes is None:  # a loader that is made anew in each pass takes the place of the one before
                key = type(sampler), len(sampler), len(indices)
                last, before = self._latest.get(key, (None, None))
                passes = before if before is not None and last is not None and last() is None else _Passes()
                self._passes[sampler], self._latest[key] = passes, (Ref(sampler), passes)
            run = iterator._sampler_iter  # a new one in each pass, also where workers stay
            if passes.run is None or passes.run() is not run:
                passes.begin(Ref(run))
            if len(passes.now) < FOLLOWED:
                passes.now.append(hash(tuple(indices)))
                passes.n_samples += len(indices)

    def _note(self, iterator: Any, batch: Any) -> None:
        try:
            is_stream = getattr(iterator, "_dataset_kind", None) == dataloader._DatasetKind.Iterable
            number, n_workers = self.last.number + 1 if self.last else 0, getattr(iterator, "_num_workers", 0)
            self.last = Handed(number=number, n_workers=n_workers, is_stream=is_stream, n_samples=0, in_order=None)
            if n_workers > 1:
                if iterator not in self._alike:
                    self._alike[iterator] = alike_in_workers(iterator)
                self.last = replace(self.last, alike=self._alike[iterator])
            sampler = _sampler(iterator)
            passes = self._passes.get(sampler) if sampler is not None else None
            if passes is not None:
                self.last = replace(self.last, n_repeats=passes.n_repeats, sampler=type(sampler).__name__)
            drawn = self._drawn.get(iterator)
            indices = drawn.popleft() if drawn else ()
            is_known = (
                getattr(iterator, "_dataset_kind", None) == dataloader._DatasetKind.Map
                and getattr(iterator, "_in_order", True)
                and isinstance(indices, (list, tuple))
                and all(isinstance(index, int) for index in indices)
            )
            if is_known and len(indices) > 1 and indices == list(range(indices[0], indices[0] + len(indices))):
                n_samples = self._sizes.get(iterator)
                if n_samples is None:
                    n_samples = self._sizes[iterator] = _size(iterator)
                self.last = replace(self.last, n_samples=n_samples, in_order=(indices[0], indices[-1]))
            if getattr(iterator, "_num_yielded", 0) == 1:
                self._begin(iterator, indices, batch)
                skipping = getattr(iterator, "_index_sampler", None)
                if n_skipped := getattr(skipping, "skip_batches", 0):  # accelerate's SkipBatchSampler
                    self._skipping[skipping] = n = self._skipping.get(skipping, 0) + 1
                    self._skips = type(iterator._dataset).__name__, n_skipped, n
            self.last = replace(self.last, skips=self._skips)
            for name, tensor in tensors(batch):
                rows = tuple(indices) if is_known and tensor.dim() and tensor.shape[0] == len(indices) else ()
                given = FromLoader(name=name, indices=rows, batch=number)
                self._given.append((Ref(tensor), version_of(tensor), given))
        except Exception:  # a batch of the user's own kind
            self._drawn.pop(iterator, None)

    def _begin(self, iterator: Any, indices: Any, batch: Any) -> None:
        """Note that a pass has begun, of which it is known which samples its first batch is made of."""
        is_batched = getattr(iterator, "_auto_collation", False)
        if iterator._dataset_kind != dataloader._DatasetKind.Map or not getattr(iterator, "_in_order", True):
            return
        with contextlib.suppress(TypeError):  # what cannot be referred to weakly
            self._begun.pop(id(iterator._dataset), None)
            if len(self._begun) < FEWEST:
                self._begun[id(iterator._dataset)] = Begun(
                    dataset=Ref(iterator._dataset), collate=iterator._collate_fn,
                    indices=tuple(indices) if is_batched else (indices,), is_batched=is_batched,
                    is_on_host=all(tensor.device.type == "cpu" for _, tensor in tensors(batch)),
                    n_workers=iterator._num_workers, is_persistent=iterator._persistent_workers,
                    iterator=Ref(iterator),
                )  # fmt: skip


def _sampler(iterator: Any) -> Any:
    """Return what draws the samples of a loader; None if it has none."""
    batches: Any = getattr(iterator, "_index_sampler", None)
    while not hasattr(batches, "sampler") and hasattr(batches, "batch_sampler"):  # one that takes from another
        batches = batches.batch_sampler
    return getattr(batches, "sampler", None)


def _size(iterator: Any) -> int:
    """Return how many samples the loader's sampler has in a pass; 0 if it does not tell."""
    sampler = _sampler(iterator)
    return len(sampler.data_source) if isinstance(sampler, SequentialSampler) else 0


# Random generators that every worker of a DataLoader has a copy of, in the same state.
#
# A worker is a copy of the program, or gets a copy of the dataset. torch seeds its own generator, Python's and NumPy's
# global ones differently in each; a generator that the dataset holds is nobody's to seed but the program's.

_DRAWING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward")
_SEEDING = frozenset({"seed", "manual_seed", "seed_everything", "set_seed"})
_OWN_SEEDS = frozenset({"get_worker_info", "initial_seed", "urandom", "SeedSequence", "time", "time_ns", "getpid"})
_NESTED = 8  # datasets inside others


def alike_in_workers(iterator: Any) -> str:
    """Name what draws the same numbers in every worker, as the program calls it; "" if nothing is known to.

    Args:
        iterator: of a DataLoader.
    """
    if getattr(iterator, "_num_workers", 0) < 2:
        return ""
    init = getattr(iterator, "_worker_init_fn", None)
    if init is not None:
        return "worker_init_fn" if isinstance(init, FunctionType) and _seeds_alike(init) else ""
    for name, held in _holders(iterator._dataset):
        used = {each for drawing in _DRAWING for each in _names_in(getattr(type(held), drawing, None))}
        if used & _SEEDING or _OWN_SEEDS & _names_of_all(type(held)):
            continue  # each sample, or each worker, has a seed of its own
        for attribute, value in getattr(held, "__dict__", {}).items():
            if attribute in used and isinstance(value, _kinds()):
                return f"{name}.{attribute}"
    return ""


def _names_in(function: Any) -> tuple[str, ...]:
    return getattr(getattr(function, "__code__", None), "co_names", ())


def _names_of_all(kind: type) -> set[str]:
    """Return the names that all methods of a class use."""
    methods = (
        value for each in kind.__mro__ if not each.__module__.startswith("torch.") for value in vars(each).values()
    )
    return {name for method in methods for name in _names_in(method)}


def _holders(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) of the dataset, of those inside it, and of what they call."""
    for _ in range(_NESTED):
        yield type(dataset).__name__, dataset
        for value in list(getattr(dataset, "__dict__", {}).values()):
            if callable(value) and not isinstance(value, type):
                yield type(value).__name__, value
        inner = getattr(dataset, "dataset", None)
        if inner is None:
            return
        dataset = inner


def _kinds() -> tuple[type, ...]:
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    return random.Random, torch.Generator, *(() if numpy is None else (numpy.Generator, numpy.RandomState))


def _seeds_alike(init: FunctionType) -> bool:
    """Return whether the function seeds something, and asks for no number that differs between workers."""
    code = init.__code__
    if not code.co_argcount or code.co_freevars or code.co_flags & 0x0C or _OWN_SEEDS & set(code.co_names):
        return False
    number = code.co_varnames[0]
    is_asked = any(
        each.opname.startswith("LOAD") and _names(each.argval, number) for each in dis.get_instructions(code)
    )
    return not is_asked and bool(_SEEDING & set(code.co_names))


def _names(what: Any, name: str) -> bool:
    return what == name or (isinstance(what, tuple) and name in what)
