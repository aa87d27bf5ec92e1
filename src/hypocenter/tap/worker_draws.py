"""Random generators that every worker of a DataLoader has a copy of, in the same state.

A worker is a copy of the program, or gets a copy of the dataset. torch seeds its own generator, Python's and NumPy's
global ones differently in each; a generator that the dataset holds is nobody's to seed but the program's.
"""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

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
