"""The first SMALL rows and columns of the sketch of hypocenter.summary.sketch: 64 bytes, a tenth of the time.

Linear like the whole, so that sums over ranks and factors between ranks can be tested from it afterwards; the norm it
estimates is within a factor of two as a rule. Where a tensor has values that are not finite, so has its sketch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.summary.reducers.torch_signs import block_elements, times_signs
from hypocenter.summary.reducers.torch_values import local_values
from hypocenter.summary.sketch import COLUMN_SEED, ROW_SEED, as_matrix, hashed, matrix_place

SMALL = 4  # rows and columns kept of K
_CACHED = 1 << 17  # signs of more rows than this are made anew each time: 2 MiB


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
    step = max(1, block_elements(matrix.device) // n_columns)
    rows, columns = _signs_of(n_rows, ROW_SEED, matrix.device), _signs_of(n_columns, COLUMN_SEED, matrix.device)
    with torch.autocast(matrix.device.type, enabled=False):
        if matrix.dtype is torch.float32:
            total = times_signs(matrix.T, rows).T
        else:
            parts = zip(rows.split(step), matrix.split(step), strict=True)
            total = torch.stack([times_signs(part.to(torch.float32).T, r).T for r, part in parts]).sum(0)
        return times_signs(total, columns).reshape(-1)


def _signs_of(n: int, seed: int, device: torch.device) -> Tensor:
    return _cached_signs(n, seed, device) if n <= _CACHED else _signs(n, seed, device)


@functools.lru_cache(maxsize=64)
def _cached_signs(n: int, seed: int, device: torch.device) -> Tensor:
    return _signs(n, seed, device)


def _signs(n: int, seed: int, device: torch.device) -> Tensor:
    numbers = hashed(torch.arange(n, device=device, dtype=torch.int64), seed)
    return (1 - 2 * ((numbers[:, None] >> torch.arange(SMALL, device=device)) & 1)).to(torch.float32)
