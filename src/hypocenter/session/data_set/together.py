"""The law "together": a collate function moves all fields of a sample together.

Which row of a field belongs to which sample is asked by giving a sample twice: the row that comes twice then is its
row, however the function sorts or pads. So the pairs of rows of two fields that belong together are known. The law is
broken where a batch has other pairs and, given in the order in which one of the fields has put it, has these: the
function moves that field and leaves the other. One that pairs rows of different samples on purpose (negatives, halves
of a mixture) does so in every order, and one that draws gives other rows with other draws: nobody can tell.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor
from torch.utils.data import _utils

from hypocenter.session.data_set.asked import TOGETHER, Asked, Broken
from hypocenter.session.data_set.draws import OTHERS, A, set_draws
from hypocenter.session.data_set.leaves import PLAIN_WORDS, bits, is_array, leaves, shape_of

_MOST, _FEWEST = 8, 3  # samples
_LEAST = 2  # rows that are parted
_ROUNDS = 3  # orders that are tried: who sorts may swap what is equal
_OF_TORCH = (_utils.collate.default_collate, _utils.collate.default_convert)

Rows = dict[str, list[bytes]]


def together(
    asked: Asked, read: Callable[[Any, Sequence[Any]], list[Any]], has_time: Callable[[], bool]
) -> Broken | None:
    """Return the fields that are parted; None if none is, or nobody can tell."""
    if asked.collate in _OF_TORCH or len(asked.indices) < _FEWEST:
        return None
    items = read(asked.dataset, asked.indices[:_MOST])
    collate = asked.collate

    def rows(order: Sequence[int], seed: int = A) -> Rows:
        set_draws(seed)
        return fields(collate([copy.deepcopy(items[at]) for at in order]), len(order))

    whole = list(range(len(items)))
    set_draws(A)
    batch = collate([copy.deepcopy(item) for item in items])
    base = fields(batch, len(items))
    if _tells_order(batch, len(items)):
        return None  # whoever gets it can put rows together again
    steady = {name for name, held in rows(whole, OTHERS[0]).items() if held == base.get(name)}
    of_sample: dict[str, list[bytes]] = {name: [] for name in base if name in steady}
    for at in whole:
        if len(of_sample) < 2 or not has_time():
            return None
        twice = rows([*whole, at])
        for name in list(of_sample):
            more = Counter(twice.get(name, [])) - Counter(base[name])
            if len(twice.get(name, [])) == len(whole) + 1 and more.total() == 1:
                of_sample[name] += more
            else:  # it depends on more than the sample
                del of_sample[name]
    known = [name for name, held in of_sample.items() if Counter(held) == Counter(base[name]) and len(set(held)) > 1]
    for one, other in itertools.permutations(known, 2):
        if not has_time():
            return None
        right = Counter(zip(of_sample[one], of_sample[other], strict=True))
        there = Counter(zip(base[one], base[other], strict=True))
        if (right - there).total() < _LEAST or _has_its_like(one, other, base, of_sample):
            continue
        if _is_healed(rows, base, of_sample[one], (one, other), right):
            indices = tuple(str(index) for index in asked.indices[: len(items)])
            return Broken(law=TOGETHER, field=one, other=other, indices=indices, n_asked=len(items), is_proven=True)
    return None


def _tells_order(batch: Any, n: int) -> bool:
    """Return whether a batch holds an order of its samples: a permutation of their places that is not the plain one."""
    places = list(range(n))
    for _, leaf in leaves(batch):
        if shape_of(leaf) == (n,):
            numbers = leaf.tolist()
            if numbers != places and sorted(numbers) == places:
                return True
    lists: list[tuple[str, list[Any]]] = []
    _lists(batch, "", lists)
    return any(held != places and set(held) == set(places) for _, held in lists if len(held) == n)


def _has_its_like(one: str, other: str, base: Rows, of_sample: Rows) -> bool:
    """Return whether the batch holds the rows of one of these twice, and once where they belong to the other's."""
    if Counter(of_sample[one]) == Counter(of_sample[other]):
        return True
    for field, beside in ((one, other), (other, one)):
        right = Counter(zip(of_sample[field], of_sample[beside], strict=True))
        for name, held in of_sample.items():
            is_like = name not in (one, other) and Counter(held) == Counter(of_sample[field])
            if is_like and Counter(zip(base[name], base[beside], strict=True)) == right:
                return True
    return False


def _is_healed(
    rows: Callable[[Sequence[int]], Rows], base: Rows, of_sample: list[bytes], names: tuple[str, str],
    right: Counter[tuple[bytes, bytes]],
) -> bool:  # fmt: skip
    """Return whether the rows belong together once the samples come in the order into which the first field is put."""
    given = base
    for _ in range(_ROUNDS):
        free: dict[bytes, list[int]] = {}
        for at, row in enumerate(of_sample):
            free.setdefault(row, []).append(at)
        given = rows([free[row].pop(0) for row in given[names[0]]])
        if not all(name in given for name in names):
            return False
        if Counter(zip(given[names[0]], given[names[1]], strict=True)) == right:
            return True
    return False


def fields(batch: Any, n: int) -> Rows:
    """Return the rows of each field of a batch of so many samples, by its name.

    A field is an array whose first dimension, or else its second, counts the samples, or a list of numbers or words.
    """
    found: Rows = {}
    lists: list[tuple[str, list[Any]]] = []
    _lists(batch, "", lists)
    for name, held in lists:
        if len(held) == n:
            found[name] = [repr(each).encode() for each in held]
    inside = tuple(f"{name}[" for name, _ in lists)
    for name, leaf in leaves(batch):
        shape = shape_of(leaf)
        if not shape or (inside and name.startswith(inside)) or n not in shape[:2]:
            continue
        rows = leaf if shape[0] == n else leaf.swapaxes(0, 1)
        if isinstance(rows, Tensor) or is_array(rows):
            found[name] = [bits(row) for row in rows]
    return found


def _lists(value: Any, name: str, found: list[tuple[str, list[Any]]]) -> None:
    if isinstance(value, (list, tuple)):
        held = list(cast("Sequence[Any]", value))
        if held and all(isinstance(each, PLAIN_WORDS) for each in held):
            found.append((name, held))
        else:
            for at, each in enumerate(held):
                _lists(each, f"{name}[{at}]", found)
    elif isinstance(value, dict) or hasattr(value, "items"):
        for key, each in cast("dict[Any, Any]", value).items():
            _lists(each, f"{name}[{key}]", found)
