"""A batch of readings looked at by columns: a word is compared once, not in every row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Columns:
    """Columns of a batch whose words are dictionaries (`record.schema.encoded`), as arrays of NumPy.

    Args:
        batch: in the columns of record.schema.READINGS.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.n = batch.num_rows
        self._words: dict[str, tuple[Ints, list[str]]] = {}
        self._has: dict[str, Bools] = {}
        self._numbers: dict[str, NDArray[Any]] = {}

    def words(self, name: str) -> tuple[Ints, list[str]]:
        """(index of each row, words); "" where there is none."""
        if name not in self._words:
            column = self.batch.column(name)
            indices, words = column.indices, [word or "" for word in column.dictionary.to_pylist()]
            if indices.null_count:
                indices, words = indices.fill_null(len(words)), [*words, ""]
            self._words[name] = indices.to_numpy(zero_copy_only=False), words
        return self._words[name]

    def having(self, name: str, test: Callable[[str], bool]) -> Bools:
        """Rows whose word passes."""
        rows, words = self.words(name)
        passed = np.fromiter(map(test, words), np.bool_, len(words))
        if not passed.any():
            return np.zeros(self.n, np.bool_)
        return passed[rows]

    def equal(self, name: str, *wanted: str) -> Bools:
        """Rows with one of these words."""
        return self.having(name, wanted.__contains__)

    def begins(self, name: str, *prefixes: str) -> Bools:
        """Rows whose word begins so."""
        return self.having(name, lambda word: word.startswith(prefixes))

    def numbers(self, name: str) -> NDArray[Any]:
        """Numbers or truths; of those that may be missing NaN stands for none."""
        if name not in self._numbers:
            self._numbers[name] = self.batch.column(name).to_numpy(zero_copy_only=False)
        return self._numbers[name]

    def has(self, name: str) -> Bools:
        """Rows that have a value."""
        if name not in self._has:
            column = self.batch.column(name)
            if 0 < column.null_count < self.n:
                self._has[name] = column.is_valid().to_numpy(zero_copy_only=False)
            else:
                self._has[name] = np.full(self.n, not column.null_count, np.bool_)
        return self._has[name]

    @cached_property
    def steps(self) -> Ints:
        """Step of each row."""
        return self.numbers("step").astype(np.int64, copy=False)

    @cached_property
    def is_nonfinite(self) -> Bools:
        """Rows with a value that is not finite."""
        counts = [self.numbers(name) for name in ("n_nan", "n_posinf", "n_neginf")]
        return (counts[0] > 0) | (counts[1] > 0) | (counts[2] > 0)

    def hashes(self, name: str) -> Ints:
        """A number for the word of each row, the same in every process."""
        rows, words = self.words(name)
        return np.fromiter(map(word_hash, words), np.int64, len(words))[rows] if words else np.zeros(self.n, np.int64)

    def digests(self) -> Ints:
        """Digest of each row; 0 where there is none."""
        column = self.batch.column("digest")
        return (column.fill_null(0) if column.null_count else column).to_numpy(zero_copy_only=False)


@lru_cache(maxsize=65_536)
def word_hash(word: str) -> int:
    """64 bits of a word, signed."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def mixed(values: Ints) -> Ints:
    """64 bits that depend on all bits of a number (splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    x = values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def by_step(steps: Ints, values: Ints) -> tuple[Ints, Ints]:
    """(steps in rising order, sum of the values of each, in the integers modulo 2**64)."""
    if not len(steps):
        return steps, values
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], steps[1:] != steps[:-1]]))
    return steps[starts], np.add.reduceat(values, starts)


__all__ = ["Bools", "Columns", "Floats", "Ints", "by_step", "mixed", "word_hash"]
