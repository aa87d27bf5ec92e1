"""The sketch of hypocenter.summary.sketch with torch, on the tensor's device; nothing here waits for it.

The first SMALL rows and columns of the sketch of hypocenter.summary.sketch: 64 bytes, a tenth of the time.

Linear like the whole, so that sums over ranks and factors between ranks can be tested from it afterwards; the norm it
estimates is within a factor of two as a rule. Where a tensor has values that are not finite, so has its sketch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.summary.reducers.torch_values import local_values
from hypocenter.summary.sketch import (
    COLUMN_SEED,
    LARGEST,
    ROW_SEED,
    K,
    Placement,
    as_matrix,
    hashed,
    matrix_place,
    row_numbers,
)  # fmt: skip

__all__ = ["Placement", "sketch_of"]
_BLOCK = 1 << 18  # elements converted to float32 at a time: 1 MiB
SMALL = 4  # rows and columns kept of K
_CACHED = 1 << 17  # signs of more rows than this are made anew each time: 2 MiB


def sketch_of(t: Tensor, place: Placement | None = None) -> Tensor:
    """Sketch a tensor, or the shard of one that `place` describes: K * K float32 on the same device.

    float64 and wide integers are multiplied in float64, all else in float32.

    Raises:
        ValueError: there are no values to read (meta, fake, quantized).
    """
    values = local_values(t)
    if values is None:
        raise ValueError(f"no values to sketch in a {type(t).__name__} on {t.device}")
    if place and len(place.shape) < values.ndim and t.is_complex():
        place = Placement(shape=(*place.shape, 2), offset=(*place.offset, 0))
    starts = matrix_place(tuple(values.shape), place)
    matrix = as_matrix(values, starts)
    exact_in_float32 = values.dtype is torch.bool or values.dtype.itemsize < 4 or values.dtype is torch.float32
    wide = torch.float32 if exact_in_float32 else torch.float64
    with torch.no_grad(), torch.autocast(values.device.type, enabled=False):
        return _product(matrix, row_numbers(starts, _arange(values.device)), starts.column, wide)


def _product(matrix: Tensor, rows: Tensor, column: int, wide: torch.dtype) -> Tensor:
    columns = _signs(_arange(matrix.device)(matrix.shape[1]) + column, COLUMN_SEED).to(wide)
    total = torch.zeros((K, K), dtype=wide, device=matrix.device)
    step = max(1, _BLOCK // max(1, matrix.shape[1]))
    for first in range(0, matrix.shape[0], step):
        block = matrix[first : first + step].to(wide).nan_to_num(0.0, 0.0, 0.0).clamp(-LARGEST, LARGEST)
        total += _signs(rows[first : first + step], ROW_SEED).to(wide).T @ (block @ columns)
    return total.to(torch.float32).reshape(-1)


def _signs(numbers: Tensor, seed: int) -> Tensor:
    return 1 - 2 * ((hashed(numbers, seed)[:, None] >> torch.arange(K, device=numbers.device)) & 1)


def _arange(device: torch.device) -> functools.partial[Tensor]:
    return functools.partial(torch.arange, device=device, dtype=torch.int64)


def small_sketches(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """SMALL * SMALL float32 per tensor, row major, on its device; nothing waits. A shard is taken for a whole tensor.

    None where there are no values here (meta, fake, quantised, empty).
    """
    with torch.no_grad():
        return [_small_sketch(tensor) for tensor in tensors]


def _small_sketch(tensor: Tensor) -> Tensor | None:
    values = local_values(tensor)
    if values is None or values.numel() == 0:
        return None
    starts = matrix_place(tuple(values.shape), None)
    matrix = as_matrix(values, starts)
    n_rows, n_columns = matrix.shape
    step = max(1, _BLOCK // n_columns)
    rows, columns = _signs_of(n_rows, ROW_SEED, matrix.device), _signs_of(n_columns, COLUMN_SEED, matrix.device)
    with torch.autocast(matrix.device.type, enabled=False):
        if matrix.dtype is torch.float32:
            total = rows.T @ matrix
        else:
            parts = zip(rows.split(step), matrix.split(step), strict=True)
            total = torch.stack([r.T @ part.to(torch.float32) for r, part in parts]).sum(0)
        return (total @ columns).reshape(-1)


def _signs_of(n: int, seed: int, device: torch.device) -> Tensor:
    return _cached_signs(n, seed, device) if n <= _CACHED else _small_signs(n, seed, device)


@functools.lru_cache(maxsize=64)
def _cached_signs(n: int, seed: int, device: torch.device) -> Tensor:
    return _small_signs(n, seed, device)


def _small_signs(n: int, seed: int, device: torch.device) -> Tensor:
    numbers = hashed(torch.arange(n, device=device, dtype=torch.int64), seed)
    return (1 - 2 * ((numbers[:, None] >> torch.arange(SMALL, device=device)) & 1)).to(torch.float32)
