"""Rows of all ranks put away by step: they come rank by rank, and are wanted step by step.

What is put away is packed (Arrow IPC, lz4), and goes to a temporary file when it grows large, so that a job of hundreds
of ranks needs the memory of some ranks while it comes in, and of a few steps while it is looked at.
"""

from __future__ import annotations

import io
import tempfile
from collections import defaultdict
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import ipc

_ROWS_AT_ONCE = 400_000  # rows gathered before they are cut and packed: some 160 MB
_ROWS_OF_BLOCK = 100_000  # of all ranks, of steps that are packed together: some 40 MB
_IN_MEMORY_BYTES = 256 << 20  # packed; beyond it a temporary file


class RowsByStep:
    """Takes tables with columns `step`, `order` and `rank`, and gives one table per step.

    Args:
        n_ranks: whose rows come: steps of few rows are packed together. One step at a time when not given.
    """

    def __init__(self, n_ranks: int | None = None) -> None:
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0
        self._empty: pa.Table | None = None
        self._n_ranks = n_ranks
        self._n_steps = 1  # of a block
        self._steps: set[int] = set()
        self._pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)  # block -> (offset, bytes) in the file
        self._block: tuple[int, dict[int, pa.Table]] | None = None  # that was taken from last
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        lz4 = "lz4" if pa.Codec.is_available("lz4") else None
        self._options = ipc.IpcWriteOptions(compression=lz4, use_threads=False)

    def put(self, table: pa.Table) -> None:
        """Store rows, of one rank or of several."""
        if self._empty is None:
            self._empty = table.schema.empty_table()
        if not table.num_rows:
            return
        steps = np.unique(table["step"].to_numpy())
        if self._n_ranks is not None and not self._steps:
            n_rows = table.num_rows * max(1, self._n_ranks) // len(np.unique(table["rank"].to_numpy()))
            self._n_steps = max(1, _ROWS_OF_BLOCK * len(steps) // n_rows)
        self._steps.update(steps.tolist())
        self._waiting.append(_by_step(table))
        self._n_waiting += table.num_rows
        if self._n_waiting >= _ROWS_AT_ONCE:
            self._pack()

    def steps(self) -> list[int]:
        """Return the steps of which there are rows and that were not taken, in rising order."""
        return sorted(self._steps)

    def take(self, step: int) -> pa.Table:
        """Return the rows of a step by rank and execution order. A step is taken once; quickest in rising order."""
        self._pack()
        self._steps.discard(step)
        block = step // self._n_steps
        if self._block is None or self._block[0] != block:
            self._block = block, self._unpacked(block)
        found = self._block[1].pop(step, None)
        return found if found is not None else self._empty if self._empty is not None else pa.table({})

    def close(self) -> None:
        """Release all memory."""
        self._block = None
        self._file.close()

    def _unpacked(self, block: int) -> dict[int, pa.Table]:
        pieces: list[pa.Table] = []
        for offset, size in self._pieces.get(block, ()):
            self._file.seek(offset)
            pieces.append(ipc.open_stream(self._file.read(size)).read_all())
        if not pieces:
            return {}
        table = pa.concat_tables(pieces).combine_chunks()
        at = np.lexsort([table[name].to_numpy() for name in ("order", "rank", "step")])
        if (np.diff(at) != 1).any():
            table = table.take(pa.array(at))
        return {step: table.slice(start, stop - start) for step, start, stop in _runs(table["step"].to_numpy())}

    def _pack(self) -> None:
        """Cut what has come in into blocks of steps, several ranks together, and compress them."""
        blocks: dict[int, list[pa.Table]] = defaultdict(list)
        for table in self._waiting:
            for block, start, stop in _runs(table["step"].to_numpy() // self._n_steps):
                blocks[block].append(table.slice(start, stop - start))
        self._waiting, self._n_waiting = [], 0
        for block, tables in blocks.items():
            table, sink = pa.concat_tables(tables).combine_chunks(), pa.BufferOutputStream()
            with ipc.new_stream(sink, table.schema, options=self._options) as stream:
                stream.write_table(table)
            packed = sink.getvalue()
            self._pieces[block].append((self._file.seek(0, io.SEEK_END), packed.size))
            self._file.write(packed)


def _by_step(table: pa.Table) -> pa.Table:
    """Return the rows in order of steps; mostly they are already."""
    step = table["step"].to_numpy()
    return table.take(pa.array(np.argsort(step, kind="stable"))) if (np.diff(step) < 0).any() else table


def _runs(number: np.ndarray) -> list[tuple[int, int, int]]:
    """Return (number, first row, row after the last) for each run of equal numbers, which rise."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(number)) + 1])
    return list(zip(number[starts].tolist(), starts.tolist(), [*starts[1:].tolist(), len(number)], strict=True))
