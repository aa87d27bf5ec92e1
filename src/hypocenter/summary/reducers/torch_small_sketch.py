"""The first SMALL rows and columns of the sketch of hypocenter.summary.sketch: 64 bytes, a tenth of the time.

Linear like the whole, so that sums over ranks and factors between ranks can be tested from it afterwards; the norm it
estimates is within a factor of two as a rule. Where a tensor has values that are not finite, so has its sketch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hypocenter.summary.reducers.torch_sketch import blocks_of, cuts_factors, times_signs
from hypocenter.summary.reducers.torch_values import local_values
from hypocenter.summary.sketch import COLUMN_SEED, ROW_SEED, WIDTH, hashed, matrix_place

SMALL = 4  # rows and columns kept of K
_CACHED = 1 << 17  # signs of more rows than this are made anew each time: 2 MiB


def small_sketches(tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return SMALL * SMALL float32 per tensor, row major, on its device; nothing waits. A shard counts as a tensor.

    None where there are no values here (meta, fake, quantised, empty).
    """
    with torch.no_grad():
        return [_small_sketch(tensor) for tensor in tensors]


def _small_sketch(tensor: Tensor) -> Tensor | None:
    values = local_values(tensor)
    if values is None or values.numel() == 0:
        return None
    starts = matrix_place(tuple(values.shape), None)
    n_rows, n_columns = math.prod(starts.size), values.shape[-1] if values.ndim > 1 else WIDTH
    columns = _signs_of(0, n_columns, n_columns, COLUMN_SEED, values.device)
    blocks = blocks_of(values, starts)
    is_matrix = values.ndim == 2 or (values.ndim > 2 and values.is_contiguous())
    if values.dtype is torch.float32 and is_matrix and n_rows <= _CACHED and not cuts_factors(values.device.type):
        blocks = ((0, values.reshape(n_rows, n_columns)),)  # multiplied as it is: nothing is copied
    with torch.autocast(values.device.type, enabled=False):
        totals: list[Tensor] = []
        for first, block in blocks:
            rows = _signs_of(first, first + block.shape[0], n_rows, ROW_SEED, values.device)
            totals.append(times_signs(block.to(torch.float32).T, rows).T)
        total = torch.stack(totals).sum(0) if len(totals) > 1 else totals[0]
        return times_signs(total, columns).reshape(-1)


def _signs_of(first: int, last: int, n: int, seed: int, device: torch.device) -> Tensor:
    """Return the signs of the numbers from `first` to `last`; all n are kept where they are not too many."""
    return _cached_signs(n, seed, device)[first:last] if n <= _CACHED else _signs(first, last, seed, device)


@functools.lru_cache(maxsize=64)
def _cached_signs(n: int, seed: int, device: torch.device) -> Tensor:
    return _signs(0, n, seed, device)


def _signs(first: int, last: int, seed: int, device: torch.device) -> Tensor:
    numbers = hashed(torch.arange(last - first, device=device, dtype=torch.int64) + first, seed)
    return (1 - 2 * ((numbers[:, None] >> torch.arange(SMALL, device=device)) & 1)).to(torch.float32)
