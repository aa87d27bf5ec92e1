"""Align two sequences so that what is aligned weighs most, and say by how much every aligned pair is needed.

A longest common subsequence with weights (Needleman and Wunsch 1970, no cost for gaps), row by row in NumPy. Forward
and backward tables together give, for each pair, the best alignment without it: only pairs that every good alignment
has are worth anything, and the answer does not depend on which side comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

AT_MOST_CELLS = 16_000_000  # 4,000 against 4,000: three tables of int32, 200 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """One pair of an alignment. `margin`: what the best alignment without it weighs less."""

    row: int
    column: int
    margin: int


def align(weights: NDArray[np.int32]) -> list[Aligned]:
    """Align rows with columns in order; `weights[i, j]` above 0 where they may be aligned.

    Pairs that can be left out, or exchanged for others, at no loss are not given.
    """
    if weights.size == 0 or weights.size > AT_MOST_CELLS or not weights.any():
        return []
    before, after = _table(weights), _table(weights[::-1, ::-1])[::-1, ::-1]
    best = int(before[-1, -1])
    with_pair = np.where(weights > 0, before[:-1, :-1] + weights + after[1:, 1:], -1)
    without = np.maximum(
        _second(with_pair, (before[:-1] + after[1:]).max(axis=1), 1)[:, None],
        _second(with_pair.T, (before[:, :-1] + after[:, 1:]).max(axis=0), 1)[None, :],
    )
    rows, columns = np.nonzero((with_pair == best) & (without < best))
    return [
        Aligned(row=int(i), column=int(j), margin=best - int(without[i, j])) for i, j in zip(rows, columns, strict=True)
    ]


def _table(weights: NDArray[np.int32]) -> NDArray[np.int32]:
    """Weight of the best alignment of the first i rows with the first j columns."""
    n_rows, n_columns = weights.shape
    table = np.zeros((n_rows + 1, n_columns + 1), dtype=np.int32)
    for i in range(n_rows):
        row = np.maximum(table[i, 1:], table[i, :-1] + weights[i])
        np.maximum.accumulate(row, out=table[i + 1, 1:])
    return table


def _second(totals: NDArray[np.int32], skipped: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """The best a row can have other than its own best column: another column, or being left out."""
    if totals.shape[axis] < 2:
        return skipped
    return np.maximum(skipped, np.partition(totals, -2, axis=axis)[:, -2])
