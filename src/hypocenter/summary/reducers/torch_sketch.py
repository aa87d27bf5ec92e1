"""The sketch of hypocenter.summary.sketch with torch, on the tensor's device; nothing here waits for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.summary.reducers.torch_values import local_values
from hypocenter.summary.sketch import (
    COLUMN_SEED,
    LARGEST,
    ROW_SEED,
    WIDTH,
    K,
    MatrixPlace,
    Placement,
    hashed,
    matrix_place,
    row_numbers,
    signs,
)  # fmt: skip

__all__ = ["Placement", "sketch_of"]

# Rows, or columns, whose signs are kept: 256 KiB as float32. On the host only: what is kept on a device would be of one
# stream, or of the graph that was being captured.
_KEPT_ROWS = 1 << 12
_IN_NUMPY = {torch.float32: np.float32, torch.float64: np.float64}


def sketch_of(t: Tensor, place: Placement | None = None) -> Tensor:
    """Sketch a tensor, or the shard of one that `place` describes: K * K float32 on the same device.

    float64 and wide integers are multiplied in float64, all else in float32, without TF32 and the like.

    Raises:
        ValueError: there are no values to read (meta, fake, quantized).
    """
    values = local_values(t)
    if values is None:
        raise ValueError(f"no values to sketch in a {type(t).__name__} on {t.device}")
    if place and len(place.shape) < values.ndim and t.is_complex():
        place = Placement(shape=(*place.shape, 2), offset=(*place.offset, 0))
    starts = matrix_place(tuple(values.shape), place)
    exact_in_float32 = values.dtype is torch.bool or values.dtype.itemsize < 4 or values.dtype is torch.float32
    wide = torch.float32 if exact_in_float32 else torch.float64
    with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
        return _product(values, starts, wide)


def _product(values: Tensor, starts: MatrixPlace, wide: torch.dtype) -> Tensor:
    arange = _arange(values.device)
    is_short = values.device.type == "cpu" and math.prod(starts.size) <= _KEPT_ROWS
    columns = _column_signs(values.shape[-1] if values.ndim > 1 else WIDTH, starts.column, wide, values.device)
    rows = row_numbers(starts, arange) if len(starts.size) > 1 and not is_short else None
    total = torch.zeros((K, K), dtype=wide, device=values.device)
    for first, block in blocks_of(values, starts):
        last = first + block.shape[0]
        finite = block.to(wide).nan_to_num(0.0, 0.0, 0.0).clamp(-LARGEST, LARGEST)
        by_columns = times_signs(finite, columns).T
        del finite  # before signs of rows are made: the peak of memory is there
        if is_short:
            of_rows = torch.from_numpy(_kept_row_signs(starts, wide))[first:last]
        else:
            numbers = arange(last - first) + (first + starts.offset[0]) if rows is None else rows[first:last]
            of_rows = _signs(numbers, ROW_SEED).to(wide)
        total += times_signs(by_columns, of_rows).T
        del of_rows
    return total.to(torch.float32).reshape(-1)


def _column_signs(n: int, start: int, wide: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu" and n <= _KEPT_ROWS:
        return torch.from_numpy(_kept_column_signs(n, start, wide))
    return _signs(_arange(device)(n) + start, COLUMN_SEED).to(wide)


# Of NumPy: a tensor that is made while the program has fake tensors would be one of them, and stay it.
@functools.lru_cache(maxsize=32)
def _kept_column_signs(n: int, start: int, wide: torch.dtype) -> NDArray[Any]:
    return signs(np.arange(n) + start, COLUMN_SEED).astype(_IN_NUMPY[wide])


@functools.lru_cache(maxsize=32)
def _kept_row_signs(starts: MatrixPlace, wide: torch.dtype) -> NDArray[Any]:
    return signs(row_numbers(starts, np.arange), ROW_SEED).astype(_IN_NUMPY[wide])


def _signs(numbers: Tensor, seed: int) -> Tensor:
    return 1 - 2 * ((hashed(numbers, seed)[:, None] >> torch.arange(K, device=numbers.device)) & 1)


def _arange(device: torch.device) -> functools.partial[Tensor]:
    return functools.partial(torch.arange, device=device, dtype=torch.int64)


# Products with signs in full precision, whatever the user has set for products, and in blocks that suit the device.
#
# TF32 keeps 11 bits of a factor, bfloat16 8. The settings are global, and other threads multiply too: they are left as
# they are. A float32 number is the sum of three bfloat16 ones without a rest, and a sign times one of these is exact.

_ON_HOST = 1 << 18  # elements converted to float32 at a time: 1 MiB, which stays in the cache
_ON_DEVICE = 32 * _ON_HOST  # 32 MiB: there a kernel's launch costs more than its work on less; four copies at most
_FULL = ("none", "ieee")


def block_elements(device: torch.device) -> int:
    """Return how many elements are converted at a time on this device."""
    return _ON_HOST if device.type == "cpu" else _ON_DEVICE


def blocks_of(values: Tensor, starts: MatrixPlace) -> Iterator[tuple[int, Tensor]]:
    """Yield the matrix that `starts` describes block by block: the first row of each, and its rows.

    A block is a view where that is possible; else only it is copied, whatever the size of the whole. No more rows than
    a vector's block has, for their signs take memory too.
    """
    n = block_elements(values.device)
    if values.ndim < 2:
        yield from _blocks_of_vector(values.reshape(-1), starts, max(1, n // WIDTH))
        return
    n_columns = values.shape[-1]
    step = max(1, min(n // max(1, n_columns), n // WIDTH))
    n_rows_each = values[:1].numel() // max(1, n_columns)
    whole = values.ndim == 2 or values.is_contiguous() or not n_rows_each
    first = 0
    for part in (values,) if whole else values.split(max(1, step // n_rows_each)):
        matrix = part.reshape(part.numel() // n_columns if n_columns else 0, n_columns)
        for row in range(0, matrix.shape[0], step):
            yield first + row, matrix[row : row + step]
        first += matrix.shape[0]


def _blocks_of_vector(flat: Tensor, starts: MatrixPlace, step: int) -> Iterator[tuple[int, Tensor]]:
    n, (n_rows,) = flat.numel(), starts.size
    for first in range(0, n_rows, step):
        last = min(first + step, n_rows)
        begin, end = first * WIDTH - starts.pad, last * WIDTH - starts.pad
        block = flat[max(0, begin) : min(end, n)]
        if begin < 0 or end > n:
            padded = flat.new_zeros((last - first) * WIDTH)
            padded[max(0, -begin) : max(0, -begin) + block.numel()] = block
            block = padded
        yield first, block.reshape(last - first, WIDTH)


def times_signs(values: Tensor, signs: Tensor) -> Tensor:
    """Return `values @ signs`; signs are 1 and -1 in the format of the values."""
    if values.dtype is not torch.float32 or not cuts_factors(values.device.type):
        return values @ signs
    high = values.to(torch.bfloat16).to(torch.float32)
    rest, total = values - high, high @ signs
    high = rest.to(torch.bfloat16).to(torch.float32)
    rest, total = rest - high, total + high @ signs
    return total + rest @ signs


def cuts_factors(device_type: str) -> bool:
    """Return whether products of float32 may be made of shorter factors (as TF32) on such a device."""
    of_device: Any = getattr(torch, device_type, None)
    if bool(getattr(getattr(of_device, "matmul", None), "allow_hf32", False)):  # torch_npu's
        return True
    get: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # torch 2.9
    if get is not None:
        backend = "mkldnn" if device_type == "cpu" else "cuda"
        return any(get(*of) not in _FULL for of in (("generic", "all"), (backend, "all"), (backend, "matmul")))
    return torch.get_float32_matmul_precision() != "highest"
