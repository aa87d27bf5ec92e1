"""Linear sketches: compare tensors of two runs from 1 KiB each instead of the tensors (docs/architecture.md, idea 3).

A tensor is seen as a matrix W; its sketch is Rᵀ W C, where R (rows × K) and C (columns × K) hold ±1 from a hash of the
row or column number in the *logical* tensor. So it is linear, shards add up, and every framework computes the same
signs. This is the product form of the tug-of-war sketch of Alon, Matias and Szegedy (1996): each of its K² entries
squared estimates the squared Frobenius norm without bias.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

K = 16  # columns of R and of C: 256 float32, 1 KiB; within 10 % as a rule, within a factor 2 for rank-one matrices
WIDTH = 64  # a vector is seen as rows of 64, whatever its length, so that a shard at any offset finds its place
ROW_SEED, COLUMN_SEED = 0x9E3779B9, 0x7F4A7C15  # halves of 2**64 / golden ratio; any two different numbers would do
_MASK = 0xFFFF_FFFF
_BLOCK = 1 << 20  # elements converted to float at a time: 4 MiB
_CACHED = 1 << 13  # rows whose signs are kept: 1 MiB as float64; of more they are made anew each time
LARGEST = 2.0**96  # elements are clamped to it, so that the sum of 2**31 of them fits in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which part of a logical tensor a shard is: the logical shape and, per dimension, where the shard starts."""

    shape: tuple[int, ...]
    offset: tuple[int, ...]


def sketch(array: NDArray[Any], place: Placement | None = None) -> NDArray[np.float32]:
    """Sketch a NumPy array of numbers: K * K float32, row major.

    The last dimension is the columns and all others are the rows; a vector is rows of WIDTH. Non-finite elements count
    as 0; complex numbers are pairs in a new last dimension. Sketches of the shards of a tensor add up to the tensor's.

    Args:
        array: the values, or one shard of them.
        place: where the shard lies in the logical tensor; the array is whole when it is not given.
    """
    if np.iscomplexobj(array):
        array = np.stack([np.real(array), np.imag(array)], axis=-1)
        place = place and Placement(shape=(*place.shape, 2), offset=(*place.offset, 0))
    values = array.astype(np.float32 if array.dtype.name in ("float16", "float32") else np.float64, copy=False)
    starts = matrix_place(values.shape, place)
    matrix = as_matrix(values, starts)
    columns = _column_signs(matrix.shape[1], starts.column).astype(values.dtype)
    is_cached = matrix.shape[0] <= _CACHED
    rows: Any = _row_signs(starts) if is_cached else row_numbers(starts, np.arange)
    total = np.zeros((K, K), dtype=np.float64)
    step = max(1, _BLOCK // max(1, matrix.shape[1]))
    for first in range(0, matrix.shape[0], step):
        block = np.nan_to_num(matrix[first : first + step], nan=0.0, posinf=0.0, neginf=0.0).clip(-LARGEST, LARGEST)
        part = rows[first : first + step]
        total += (part if is_cached else signs(part, ROW_SEED)).T @ (block @ columns).astype(np.float64)
    return total.astype(np.float32).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPlace:
    """A shard as a matrix: numbers of its first column, and shape, logical shape and offset of what became the rows."""

    column: int
    pad: int  # zeros in front of a vector's shard, so that it starts at a row's start
    size: tuple[int, ...]
    shape: tuple[int, ...]
    offset: tuple[int, ...]


def matrix_place(size: tuple[int, ...], place: Placement | None) -> MatrixPlace:
    """See a shard of the given size as a part of a logical matrix."""
    shape, offset = (place.shape, place.offset) if place else (size, (0,) * len(size))
    if len(size) > 1:
        return MatrixPlace(column=offset[-1], pad=0, size=size[:-1], shape=shape[:-1], offset=offset[:-1])
    n, start = (size[0], offset[0]) if size else (1, 0)
    pad = start % WIDTH
    n_rows = -(-(pad + n) // WIDTH)
    return MatrixPlace(column=0, pad=pad, size=(n_rows,), shape=(start // WIDTH + n_rows,), offset=(start // WIDTH,))


def as_matrix(values: Any, starts: MatrixPlace) -> Any:
    """Return a NumPy array or a torch tensor as the matrix that `starts` describes."""
    if values.ndim > 1:
        return values.reshape(math.prod(starts.size), values.shape[-1])
    if starts.size[0] == 0:
        return values.reshape(0, WIDTH)
    padded = values.new_zeros if hasattr(values, "new_zeros") else _zeros_like(values)
    flat = padded(starts.size[0] * WIDTH)
    n = values.shape[0] if values.ndim else 1
    flat[starts.pad : starts.pad + n] = values.reshape(-1)
    return flat.reshape(starts.size[0], WIDTH)


def row_numbers(starts: MatrixPlace, arange: Any) -> Any:
    """Return the logical row number of each row of the shard, as int64 from the framework's own `arange`."""
    rows = arange(1)
    for size, shape, offset in zip(starts.size, starts.shape, starts.offset, strict=True):
        rows = (rows[:, None] * shape + (arange(size) + offset)[None, :]).reshape(-1)
    return rows


def hashed(numbers: Any, seed: int) -> Any:
    """Mix int64 numbers (NumPy or torch) into 32 bits: twice the finaliser of MurmurHash3, over both halves.

    Every product is taken modulo 2**32 and int64 products wrap, so all frameworks agree to the bit.
    """
    low = _finalised((numbers ^ seed) & _MASK)
    return _finalised((low + ((numbers >> 32) & _MASK) + seed) & _MASK)


def _finalised(x: Any) -> Any:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK  # MurmurHash3 fmix32, Appleby 2011
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)


def signs(numbers: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return K signs, 1 or -1, of each number: (numbers, K)."""
    return 1 - 2 * ((hashed(numbers.astype(np.int64), seed)[:, None] >> np.arange(K)) & 1)


@functools.lru_cache(maxsize=32)
def _row_signs(starts: MatrixPlace) -> NDArray[np.float64]:
    return signs(row_numbers(starts, np.arange), ROW_SEED).astype(np.float64)


@functools.lru_cache(maxsize=32)
def _column_signs(n: int, start: int) -> NDArray[np.int64]:
    return signs(np.arange(n) + start, COLUMN_SEED)


def _zeros_like(values: NDArray[Any]) -> Any:
    return lambda n: np.zeros(n, dtype=values.dtype)
