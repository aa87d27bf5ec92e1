"""A number for each row of a batch: rows of equal bits have equal numbers, on any device.

The hash of `hypocenter.tap.digest` over each row by itself, mixed (as by Steele, Lea and Flood, 2014) and cut to
BITS. Of a batch of many rows those with the smallest numbers are kept: the same samples wherever they come again.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.batch_numbers import (
    BITS,
    KEPT,
    LOOKED_AT,
    MIX,
    ROW,
    WORD,
    Words,
    row_numbers,
    rows_kept,
    stride_of_rows,
)
from hypocenter.tap.digest import _keys, _values
from hypocenter.tap.host_memory import bytes_of

MOST_COPIED = 1 << 20  # elements
NUMBERS = 2  # float32 numbers that one digest travels as, each below 2**(BITS / 2)
_HALF = BITS // 2
_INTEGERS: dict[int, torch.dtype] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_IN_NUMPY: dict[int, type[np.generic]] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
_SHAPE = operator.attrgetter("shape")


def as_rows(tensor: Tensor) -> Tensor | None:
    """Return the values as [rows, elements] in the order of memory; None where they are no view of that, and many."""
    values = _values(tensor) if tensor.dim() else None
    if values is None:
        return None
    if not values.is_contiguous():
        strides = values.stride()
        values = values.permute(0, *sorted(range(1, values.dim()), key=lambda at: -strides[at]))
        if not values.is_contiguous():  # a part of each row, such as all tokens but the last
            if values.numel() > MOST_COPIED:
                return None
            values = values.contiguous()
    return values.view(values.shape[0], -1)


def is_on_host(tensor: Tensor) -> bool:
    """Return whether NumPy can read the tensor."""
    return tensor.device.type == "cpu"


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows that are kept of one batch: their positions, and their digests for each tensor that has them."""

    positions: Any  # [k], in the batch
    digests: dict[int, Any]  # number of a tensor -> [k]; 0: all elements of the row are equal


def kept(tables: Sequence[Tensor | None]) -> Kept | None:
    """Return the rows that are kept of a batch, on the tensors' device (on the host as NumPy arrays); nobody waits.

    Args:
        tables: of `as_rows`, on one device. The one with the most elements a row says which rows are kept, and what has
            another number of rows is left out.
    """
    at = rows_kept([None if table is None else (table.shape[0], table.shape[1]) for table in tables])
    if not at:
        return None
    looked_at = {i: table for i in at if (table := tables[i]) is not None}
    first = looked_at[at[0]]
    if is_on_host(first):
        return _smallest({i: _on_host(table) for i, table in looked_at.items()}, at[0], np.arange)
    in_order = functools.partial(torch.arange, device=first.device)
    return _smallest({i: _on_device(table) for i, table in looked_at.items()}, at[0], in_order)


def kept_on_host(tables: Sequence[NDArray[Any]]) -> Kept | None:
    """Return the rows that are kept of tables [rows, elements] of values that NumPy has; see `kept`."""
    at = rows_kept(list(map(_SHAPE, tables)))
    if not at:
        return None
    digests: dict[int, Any] = {}
    for i in at:
        digests[i] = row_numbers(tables[i].view(_IN_NUMPY[tables[i].itemsize]))
    return _smallest(digests, at[0], np.arange)


def _smallest(digests: dict[int, Any], first: int, in_order: Callable[[int], Any]) -> Kept:
    """Choose the rows to keep by the first table's digests, and return them for all tables."""
    if (n_rows := len(digests[first])) <= KEPT:
        return Kept(in_order(n_rows), digests)
    positions = digests[first].argsort()[:KEPT]
    return Kept(positions, {i: each[positions] for i, each in digests.items()})


def halves(digests: Tensor) -> Tensor:
    """Split digests into numbers that float32 holds exactly: [..., NUMBERS]."""
    return torch.stack([digests >> _HALF, digests & ((1 << _HALF) - 1)], dim=-1).float()


def whole(high: float, low: float) -> int:
    """Join the two halves of a digest."""
    return (int(high) << _HALF) | int(low)


def _on_host(table: Tensor) -> Words:
    return row_numbers(bytes_of(table).view(_IN_NUMPY[table.itemsize]).reshape(table.shape))


def _on_device(table: Tensor) -> Tensor:
    raw = table.view(_INTEGERS[table.itemsize])[:, :: stride_of_rows(table.shape[1])].contiguous()
    if missing := -raw.shape[1] * raw.itemsize % WORD // raw.itemsize:
        raw = torch.nn.functional.pad(raw, (0, missing))
    words = raw.view(torch.int64)
    low, high = _keys(table.device)
    n = words.shape[1]
    z = (words * low[:n]).sum(1) + ((words >> 32) * high[:n]).sum(1)
    z = z ^ ((z >> 32) & 0xFFFF_FFFF)
    z = z * MIX
    z = z ^ ((z >> 29) & 0x7_FFFF_FFFF)
    z = (z >> (64 - BITS)) & ((1 << BITS) - 1)
    if table.shape[1] > 1:
        seen = raw[:, : raw.shape[1] - missing]
        z = z * (seen != seen[:, :1]).any(1)
    return z


assert LOOKED_AT <= ROW
