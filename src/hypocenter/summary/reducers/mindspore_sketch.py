"""The sketch of hypocenter.summary.sketch with MindSpore's operators, on the tensor's device; nothing waits for it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from mindspore import Tensor, _no_grad, ops  # pyright: ignore[reportMissingImports]
from mindspore import dtype as mstype  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.summary.sketch import (
    COLUMN_SEED,
    LARGEST,
    ROW_SEED,
    WIDTH,
    K,
    MatrixPlace,
    Placement,
    matrix_place,
    row_numbers,
    signs,
)  # fmt: skip

_BLOCK = 1 << 20  # elements multiplied at a time: 4 MiB


def sketch_of(tensor: Any, place: Placement | None = None) -> Any:
    """Sketch a tensor, or the shard of one that `place` describes: K * K float32 on the same device, in float32."""
    with _no_grad():
        values = tensor
        if dtype_name(tensor).startswith("complex"):
            values = ops.stack((tensor.real(), tensor.imag()), -1)
            place = place and Placement(shape=(*place.shape, 2), offset=(*place.offset, 0))
        starts = matrix_place(tuple(values.shape), place)
        return _product(_as_matrix(values.astype(mstype.float32), starts), starts)


def _as_matrix(values: Any, starts: MatrixPlace) -> Any:
    if values.ndim > 1:
        return values.reshape(int(np.prod(starts.size, dtype=np.int64)), values.shape[-1])
    row = values.reshape(-1)
    after = starts.size[0] * WIDTH - starts.pad - int(row.size)
    parts = [_zeros(starts.pad), row, _zeros(after)]
    return ops.cat(tuple(part for part in parts if part is not None)).reshape(-1, WIDTH)


def _zeros(n: int) -> Any | None:
    return ops.zeros((n,), mstype.float32) if n else None


def _product(matrix: Any, starts: MatrixPlace) -> Any:
    n_rows, n_columns = matrix.shape
    columns = Tensor(_signs(n_columns, starts.column))
    rows = _row_signs(starts)
    total = ops.zeros((K, K), mstype.float32)
    step = max(1, _BLOCK // max(1, n_columns))
    for first in range(0, n_rows, step):
        part = matrix[first : first + step]
        block = ops.select(ops.isfinite(part), part, ops.zeros_like(part)).clamp(-LARGEST, LARGEST)
        total = total + ops.matmul(
            Tensor(np.ascontiguousarray(rows[first : first + step].T)), ops.matmul(block, columns)
        )
    return total.reshape(-1)


@functools.lru_cache(maxsize=64)
def _signs(n: int, start: int) -> NDArray[np.float32]:
    return signs(np.arange(n) + start, COLUMN_SEED).astype(np.float32)


@functools.lru_cache(maxsize=64)
def _row_signs(starts: MatrixPlace) -> NDArray[np.float32]:
    return signs(row_numbers(starts, np.arange), ROW_SEED).astype(np.float32)
