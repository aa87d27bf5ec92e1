"""Rows of all ranks put away by step: they come rank by rank, and are wanted step by step.

What is on the by_step is packed (Arrow IPC, lz4), and goes to a temporary file when it grows large, so that a job of
hundreds of ranks needs the memory of some ranks while it comes in, and of one step while it is looked at.
"""

from __future__ import annotations

import io
import tempfile
from collections import defaultdict
from typing import IO

import numpy as np
import pyarrow as pa
from pyarrow import ipc

_ROWS_AT_ONCE = 100_000  # rows gathered before they are cut into steps and packed: some 40 MB
_IN_MEMORY_BYTES = 256 << 20  # packed; beyond it the by_step is a temporary file


class RowsByStep:
    """Tables with columns `step`, `order` and `rank` in, one table per step out."""

    def __init__(self) -> None:
        self._waiting: list[pa.Table] = []
        self._n_waiting = 0
        self._empty: pa.Table | None = None
        self._pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step -> (offset, bytes) in the file
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115
        lz4 = "lz4" if pa.Codec.is_available("lz4") else None
        self._options = ipc.IpcWriteOptions(compression=lz4, use_threads=False)

    def put(self, table: pa.Table) -> None:
        """Put the rows of the next rank away; ranks come in rising order."""
        if self._empty is None:
            self._empty = table.schema.empty_table()
        if not table.num_rows:
            return
        self._waiting.append(_in_order(table))
        self._n_waiting += table.num_rows
        if self._n_waiting >= _ROWS_AT_ONCE:
            self._pack()

    def steps(self) -> list[int]:
        """Steps of which there are rows, in rising order."""
        self._pack()
        return sorted(self._pieces)

    def take(self, step: int) -> pa.Table:
        """The rows of a step by rank and execution order. A step is taken once."""
        self._pack()
        found: list[pa.Table] = []
        for offset, size in self._pieces.pop(step, []):
            self._file.seek(offset)
            found.append(ipc.open_stream(self._file.read(size)).read_all())
        return pa.concat_tables(found) if found else (self._empty if self._empty is not None else pa.table({}))

    def close(self) -> None:
        """Let go of everything."""
        self._file.close()

    def _pack(self) -> None:
        """Cut what has come in into steps, those of several ranks together, and pack them."""
        by_step: dict[int, list[pa.Table]] = defaultdict(list)
        for table in self._waiting:
            for step, start, stop in _runs(table):
                by_step[step].append(table.slice(start, stop - start))
        self._waiting, self._n_waiting = [], 0
        self._file.seek(0, io.SEEK_END)
        for step, tables in by_step.items():
            offset, table = self._file.tell(), pa.concat_tables(tables).combine_chunks()
            with ipc.new_stream(pa.PythonFile(self._file, mode="w"), table.schema, options=self._options) as stream:
                stream.write_table(table)
            self._pieces[step].append((offset, self._file.tell() - offset))


def _in_order(table: pa.Table) -> pa.Table:
    """The rows of one rank by step and execution order; as they were written, they mostly are."""
    step, order = table["step"].to_numpy(), table["order"].to_numpy()
    later = np.diff(step)
    if (later < 0).any() or (np.diff(order)[later == 0] < 0).any():
        return table.take(pa.array(np.lexsort((order, step))))
    return table


def _runs(table: pa.Table) -> list[tuple[int, int, int]]:
    """(step, first row, row after the last) of rows that are in the order of steps."""
    step = table["step"].to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(step)) + 1])
    stops = [*starts[1:].tolist(), len(step)]
    return list(zip(step[starts].tolist(), starts.tolist(), stops, strict=True))
