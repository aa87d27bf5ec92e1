"""A batch of readings looked at by columns: a word is compared once, not in every row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


KINDS = ("phase", "site", "port", "dtype", "placement")
"""The columns of words that tell one kind of row from another."""

_MOST_KINDS = 1 << 20  # combinations of words that may be: beyond it those that are there are sorted


class Kinds:
    """The combinations of words that rows have: some hundred, where there are many thousand rows.

    Args:
        words: of each of KINDS, (index of each kind, words).
    """

    def __init__(self, words: Mapping[str, tuple[Ints, list[str]]]) -> None:
        self._words = words

    def words(self, name: str) -> tuple[Ints, list[str]]:
        """Return (index of each kind, words) of one column; "" stands for none."""
        return self._words[name]

    def having(self, name: str, test: Callable[[str], bool]) -> Bools:
        """Return which kinds have a word that passes the test."""
        kinds, words = self._words[name]
        return np.fromiter(map(test, words), np.bool_, len(words))[kinds]

    def equal(self, name: str, *wanted: str) -> Bools:
        """Return which kinds have one of these words."""
        return self.having(name, wanted.__contains__)

    def begins(self, name: str, *prefixes: str) -> Bools:
        """Return which kinds have a word that begins with one of the prefixes."""
        return self.having(name, lambda word: word.startswith(prefixes))


class Columns:
    """Columns of a batch whose words are dictionaries (`record.schema.encoded`), as arrays of NumPy.

    Args:
        batch: in the columns of record.schema.READINGS.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.n: int = batch.num_rows
        self.batch = batch
        self._numbers: dict[str, NDArray[Any]] = {}
        self._has: dict[str, Bools] = {}

    def only(self, rows: Bools) -> Columns:
        """Return some of the rows. Columns that nobody asks for are not copied."""
        return self if rows.all() else _Part(self, rows)

    def of(self, kinds: Bools) -> Columns:
        """Return the rows of these kinds."""
        return self.only(self.rows(kinds))

    def rows(self, kinds: Bools) -> Bools:
        """Return which rows are of these kinds."""
        return kinds[self.kind] if kinds.any() else np.zeros(self.n, np.bool_)

    @property
    def kinds(self) -> Kinds:
        """The kinds of its rows, and maybe others as well."""
        return self._coded[0]

    @property
    def kind(self) -> Ints:
        """The kind of each row."""
        return self._coded[1]

    @cached_property
    def _coded(self) -> tuple[Kinds, Ints]:
        known = {name: _dictionary(self.batch.column(name)) for name in KINDS}
        code, size = np.zeros(self.n, np.int32), 1
        for rows, words in known.values():
            size *= len(words)
            code = (code if size <= _MOST_KINDS else code.astype(np.int64)) * len(words) + rows
        if size <= _MOST_KINDS:
            number = np.zeros(size, np.int64)
            number[code] = 1
            there = np.flatnonzero(number)
            number[there] = np.arange(len(there))
            code = number[code]
        else:
            there, code = np.unique(code, return_inverse=True)
        words_of: dict[str, tuple[Ints, list[str]]] = {}
        for name, (_, words) in reversed(known.items()):
            there, index = np.divmod(there, max(1, len(words)))
            words_of[name] = index, words
        return Kinds(words_of), code

    def words(self, name: str) -> tuple[Ints, list[str]]:
        """Return (index of each row, words) of one of KINDS; "" stands for none."""
        kinds, words = self.kinds.words(name)
        return kinds[self.kind], words

    def hashes(self, name: str) -> Ints:
        """Return a number for the word of each row, one of KINDS; it is the same in every process."""
        kinds, words = self.kinds.words(name)
        return np.fromiter(map(word_hash, words), np.int64, len(words))[kinds][self.kind]

    def column(self, name: str) -> pa.Array:
        """Return the column as an array of Arrow."""
        return self.batch.column(name)

    def numbers(self, name: str) -> NDArray[Any]:
        """Return a column of numbers or truth values; NaN stands for missing ones."""
        if name not in self._numbers:
            self._numbers[name] = self._numbers_of(name)
        return self._numbers[name]

    def _numbers_of(self, name: str) -> NDArray[Any]:
        column = self.batch.column(name)
        if name == "digest" and column.null_count:
            column = column.fill_null(0)
        return column.to_numpy(zero_copy_only=False)

    def has(self, name: str) -> Bools:
        """Return which rows have a value in this column."""
        if name not in self._has:
            self._has[name] = self._has_of(name)
        return self._has[name]

    def _has_of(self, name: str) -> Bools:
        column = self.batch.column(name)
        if 0 < column.null_count < self.n:
            return column.is_valid().to_numpy(zero_copy_only=False)
        return np.full(self.n, not column.null_count, np.bool_)

    @cached_property
    def steps(self) -> Ints:
        """The step of each row."""
        return self.numbers("step").astype(np.int64, copy=False)

    @cached_property
    def is_nonfinite(self) -> Bools:
        """Which rows hold a value that is not finite."""
        counts = [self.numbers(name) for name in ("n_nan", "n_posinf", "n_neginf")]
        return (counts[0] > 0) | (counts[1] > 0) | (counts[2] > 0)

    def digests(self) -> Ints:
        """Return the digest of each row; 0 where there is none."""
        return self.numbers("digest")


class _Part(Columns):
    """Some rows of columns."""

    def __init__(self, of: Columns, rows: Bools) -> None:
        at = np.flatnonzero(rows)
        self._whole, self._at = (of._whole, of._at[at]) if isinstance(of, _Part) else (of, at)
        self.n = len(at)
        self._numbers, self._has = {}, {}

    @cached_property
    def _coded(self) -> tuple[Kinds, Ints]:
        return self._whole.kinds, self._whole.kind[self._at]

    def column(self, name: str) -> pa.Array:
        import pyarrow as pa

        return self._whole.column(name).take(pa.array(self._at))

    def _numbers_of(self, name: str) -> NDArray[Any]:
        return self._whole.numbers(name)[self._at]

    def _has_of(self, name: str) -> Bools:
        return self._whole.has(name)[self._at]


def _dictionary(column: pa.DictionaryArray) -> tuple[Ints, list[str]]:
    indices, words = column.indices, [word or "" for word in column.dictionary.to_pylist()]
    if indices.null_count:
        indices, words = indices.fill_null(len(words)), [*words, ""]
    return indices.to_numpy(zero_copy_only=False), words


def mask_of(rows: Bools) -> pa.BooleanArray:
    """Return a mask for Arrow; `pyarrow.array` would import pandas, if installed, to see what it is given."""
    import pyarrow as pa

    bits = pa.py_buffer(np.packbits(rows, bitorder="little"))
    return pa.BooleanArray.from_buffers(pa.bool_(), len(rows), [None, bits])


@lru_cache(maxsize=65_536)
def word_hash(word: str) -> int:
    """Return 64 bits of a word's hash, signed."""
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def mixed(values: Ints) -> Ints:
    """Return 64 bits that depend on all bits of each number (splitmix64: Steele, Lea, Flood, OOPSLA 2014)."""
    x = values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))).view(np.int64)


def by_step(steps: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Return (steps in rising order, sum of the values of each, in the integers modulo 2**64)."""
    if not len(steps):
        return steps, values
    if (np.diff(steps) < 0).any():
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], steps[1:] != steps[:-1]]))
    return steps[starts], np.add.reduceat(values, starts)


__all__ = ["Bools", "Columns", "Floats", "Ints", "Kinds", "by_step", "mask_of", "mixed", "word_hash"]
