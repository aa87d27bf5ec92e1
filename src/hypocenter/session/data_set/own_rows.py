"""What a data set itself holds of one of its samples: the row of an array, the element of a list or of a cache."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor
from torch.utils.data import Subset

from hypocenter.session.data_set.leaves import Unknown, bits, extent, is_array, leaves, shape_of

FEWEST = 16  # elements: fewer may count something, or seed a generator
_NESTED = 8  # data sets inside others


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An array of one sample."""

    place: tuple[int, int] | None  # in memory
    held: bytes


def own_rows(dataset: Any, index: Any) -> dict[str, Row]:
    """Return the arrays that a data set holds of this sample, by name: "images[3]"."""
    found: dict[str, Row] = {}
    for owner, at in _owners(dataset, index):
        for name, row in _rows(owner, at):
            try:
                arrays = [(inside, leaf) for inside, leaf in leaves(row) if math.prod(shape_of(leaf)) >= FEWEST]
                for inside, leaf in arrays:
                    found[f"{name}[{at}]{inside}"] = Row(place=extent(leaf), held=bits(leaf))
            except Unknown:
                continue
    return found


def _owners(dataset: Any, index: Any) -> Iterator[tuple[Any, Any]]:
    for _ in range(_NESTED):
        if isinstance(dataset, Subset):
            dataset, index = cast("Any", dataset.dataset), dataset.indices[index]
            continue
        yield dataset, index
        inner = getattr(dataset, "dataset", None)
        if inner is None:
            return
        dataset = inner


def _rows(owner: Any, at: Any) -> Iterator[tuple[str, Any]]:
    try:
        n = len(owner)
    except TypeError:
        n = -1
    if isinstance(owner, (list, tuple)):
        yield "", cast("Sequence[Any]", owner)[at]
    for name, value in list(getattr(owner, "__dict__", {}).items()):
        if isinstance(value, Mapping):
            held = cast("Mapping[Any, Any]", value)
            if type(held) is dict and at in held:
                yield name, held[at]
        elif isinstance(value, Tensor) or is_array(value):
            if shape_of(value)[:1] == (n,):
                yield name, value[at]
        elif type(value) in (list, tuple) and len(cast("Sequence[Any]", value)) == n:
            yield name, cast("Sequence[Any]", value)[at]
