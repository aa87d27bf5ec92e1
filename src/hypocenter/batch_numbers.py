"""Numbers that tell the tensors of a batch and their rows from others, of arrays on the host: NumPy alone.

`hypocenter.tap.digest`, `row_digests` and `shares` compute the same numbers on devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Raw: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.int64]

WORD = 8  # bytes
ROW = 1 << 15  # words to a row of a digest: with both rows of keys 768 KiB, which fits in a core's second-level cache
POWER = 0x5851_F42D_4C95_7F2D  # multiplier of Knuth's MMIX generator; odd
LENGTH = 0x1405_7B7E_F767_814F  # its increment; odd
_ALL_BITS = (1 << 64) - 1

KEPT = 32  # rows of a batch
MOST = 1 << 12  # rows of a batch that are looked at: what has more is no batch of samples
LOOKED_AT = 1 << 9  # elements of a row, at a stride
BITS = 46  # of the number of a row
MIX = 0x4CF5_AD43_2745_937F  # odd
_MIX, _32, _29, _REST = map(np.uint64, (MIX, 32, 29, 64 - BITS))

SAMPLE = 1 << 8  # elements of a tensor that its shares are of
N_CLASSES = 16  # whole numbers are counted by their remainder
N_SHARES = 7 + N_CLASSES
"""Share of elements that equal the smallest, the largest, the element after them; of different ones among them; of
those not below 0 that equal the element of the first tensor of whole numbers at the same place, at the one after it;
row of the largest magnitude; share of each class."""


@functools.cache
def keys() -> tuple[Words, Words]:
    """Return odd keys for the columns of a digest: of whole words, and of their upper halves."""
    with np.errstate(over="ignore"):
        numbers = _splitmix(np.arange(2 * ROW, dtype=np.uint64)) | np.uint64(1)
    found = numbers.view(np.int64)
    return found[:ROW], found[ROW:]


def signed(number: int) -> int:
    """Return the number modulo 2**64, as a signed int64 holds it."""
    number &= _ALL_BITS
    return number - (1 << 64) if number >> 63 else number


def digest(raw: Raw) -> int:
    """Return the digest of an array's bytes: see hypocenter.tap.digest."""
    words = raw.view(np.int64) if len(raw) % WORD == 0 else _words(raw)
    if (n := len(words)) > ROW:
        return signed(of_rows([words]) + LENGTH * len(raw))
    low, high = keys()
    number = (int(words.dot(low[:n])) + int((words >> 32).dot(high[:n])) + LENGTH * len(raw)) & _ALL_BITS
    return number - (1 << 64) if number >> 63 else number  # `signed`, at each step


def of_rows(blocks: Iterable[Words]) -> int:
    """Return a digest without what its length adds (NumPy takes half of torch's time for it on a CPU).

    Args:
        blocks: the words in order; each but the last is a whole number of rows.
    """
    low, high = keys()
    upper = np.empty(ROW, np.int64)
    total = 0
    for words in blocks:
        for first in range(0, len(words), ROW):
            row = words[first : first + ROW]
            n = len(row)
            np.right_shift(row, 32, out=upper[:n])
            value = int(np.einsum("i,i->", row, low[:n])) + int(np.einsum("i,i->", upper[:n], high[:n]))
            total = signed(total * POWER + value)
    return total


def moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    """Return smallest and largest value, mean and standard deviation of a flat array. -inf counts as 0."""
    if values.dtype.kind == "f":
        with np.errstate(all="ignore"):  # of what is not finite nothing is said: that is the program's to see
            return _moments(values)
    return _moments(values)


def _moments(values: NDArray[Any]) -> tuple[float, float, float, float]:
    low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    if low == -math.inf:  # an additive mask
        values = np.where(values == low, np.zeros(1, values.dtype), values)
        low, high = float(values.min()), float(values.max())
    mean = float(np.add.reduce(values, dtype=np.float64)) / len(values)
    away: NDArray[np.floating[Any]] = np.subtract(values, mean)
    return low, high, mean, math.sqrt(float(away.dot(away)) / len(values))


def rows_kept(shapes: Sequence[tuple[int, int] | None]) -> list[int]:
    """Return which tables of a batch have numbers of rows; the first of them says which rows are kept.

    Args:
        shapes: (rows, elements) of each. That with the most elements a row comes first; what has another number of
            rows is left out.
    """
    first, most = 0, -1
    for at, shape in enumerate(shapes):
        if shape is not None and shape[1] > most:
            first, most = at, shape[1]
    shape = shapes[first] if most >= 0 else None
    if shape is None or not 2 <= shape[0] <= MOST:
        return []
    found = [first]
    for at, each in enumerate(shapes):
        if each is not None and each[0] == shape[0] and at != first:
            found.append(at)
    return found


def stride_of_rows(n_elements: int) -> int:
    """Return the distance between the elements of a row that are looked at."""
    return max(1, math.ceil(n_elements / LOOKED_AT))


def row_numbers(bits: NDArray[Any]) -> Words:
    """Return a number below 2**BITS for each row of a table, [rows]; 0 for a row of equal elements.

    Args:
        bits: [rows, elements], whole numbers of the size of the elements.
    """
    stride = 1 if bits.shape[1] <= LOOKED_AT else stride_of_rows(bits.shape[1])
    raw = np.ascontiguousarray(bits[:, ::stride])
    if (n_bytes := raw.shape[1] * raw.itemsize) % WORD:
        filled = np.zeros((len(raw), n_bytes + -n_bytes % WORD), np.uint8)
        filled[:, :n_bytes] = raw.view(np.uint8)
        words = filled.view(np.int64)
    else:
        words = raw.view(np.int64)
    low, high = keys()
    n = words.shape[1]
    z = (words @ low[:n] + (words >> 32) @ high[:n]).view(np.uint64)
    z ^= z >> _32
    z *= _MIX
    z ^= z >> _29
    z >>= _REST
    if raw.shape[1] > 1:
        z[np.logical_and.reduce(raw == raw[:, :1], 1)] = 0
    return z.view(np.int64)


@functools.lru_cache(maxsize=64)
def places(n: int) -> Words:
    """Return where the elements of a sample of `n` elements are, and the element after each: [2, SAMPLE]."""
    at = np.arange(SAMPLE, dtype=np.int64) * n // SAMPLE
    return np.stack([at, (at + 1) % n])


def shares(
    values: NDArray[np.float32], shapes: Sequence[tuple[int, int]], is_whole: Sequence[bool], first_whole: int
) -> NDArray[np.float32]:
    """Return numbers that tell what the tensors of a batch are made of: [tensors, N_SHARES].

    Args:
        values: [tensors, 2, SAMPLE], of each what stands at its `places`.
        shapes: (rows, elements) of each.
        is_whole: whether its elements are whole numbers.
        first_whole: the first for which that is so, -1: none.
    """
    out = np.zeros((len(values), N_SHARES), np.float32)
    for at, ((here, after), (n_rows, n_elements)) in enumerate(zip(values, shapes, strict=True)):
        n, told = n_rows * n_elements, out[at]
        in_order = here.copy()
        in_order.sort()  # methods of arrays, at each step: what stands around the functions of NumPy costs as much
        told[0] = in_order.searchsorted(in_order[0], "right") / SAMPLE
        told[1] = 1.0 - in_order.searchsorted(in_order[-1]) / SAMPLE
        told[2] = int(np.add.reduce(here == after)) / SAMPLE
        told[3] = (int(np.add.reduce(in_order[1:] != in_order[:-1])) + 1) / min(n, SAMPLE)
        if not is_whole[at]:
            told[6] = int(abs(here).argmax()) * n // SAMPLE // n_elements
            continue
        told[7:] = np.bincount(here.astype(np.int64) % N_CLASSES, minlength=N_CLASSES) / SAMPLE
        if at != first_whole and n == math.prod(shapes[first_whole]):
            counts = here >= 0
            n_counts = np.count_nonzero(counts) + 1e-6
            told[4] = np.count_nonzero(counts & (here == values[first_whole, 0])) / n_counts
            told[5] = np.count_nonzero(counts & (here == values[first_whole, 1])) / n_counts
    return out


def _words(raw: Raw) -> Words:
    filled = np.zeros(-(-len(raw) // WORD), dtype=np.int64)
    filled.view(np.uint8)[: len(raw)] = raw
    return filled


def _splitmix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64 (Steele, Lea and Flood, 2014): the same numbers everywhere, whatever the random state."""
    z = (numbers + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))
