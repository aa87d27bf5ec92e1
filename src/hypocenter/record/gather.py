"""Which rows and columns of a file are wanted, and what is kept of its batches as they stream by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

Mask = Callable[[pa.RecordBatch], pa.Array]
"""For a batch, which of its rows are wanted: booleans."""


_FEW = 8  # times as many rows, where only some are wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """Rows and columns to keep. Nothing given keeps everything."""

    columns: tuple[str, ...] | None = None
    where: Mask | None = None
    needs: tuple[str, ...] = ()  # columns that `where` looks at beside `columns`
    is_encoded: bool = False  # words as dictionaries (record.schema.encoded), for `where` and in what is kept

    @property
    def reads(self) -> tuple[str, ...] | None:
        """Columns to read from the file; None for all."""
        return None if self.columns is None else tuple(dict.fromkeys((*self.columns, *self.needs)))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What is wanted of a batch."""
        rows = batch if self.where is None else kept_rows(batch, self.where(batch))
        return rows if self.columns is None else rows.select(list(self.columns))


def kept_rows(batch: pa.RecordBatch, mask: pa.Array) -> pa.RecordBatch:
    """Rows of a batch: a few of them are quicker picked than all others left out."""
    n = mask.true_count
    if n in (0, batch.num_rows):
        return batch.slice(0, n)
    return batch.take(pc.indices_nonzero(mask)) if n * _FEW < batch.num_rows else batch.filter(mask)


EVERYTHING = Want()


def nothing(batch: pa.RecordBatch) -> pa.Array:
    """A mask that no row passes."""
    return pa.repeat(pa.scalar(False), batch.num_rows)


class Gathered:
    """What was kept of one file: wanted rows, all rows while they are few, and a count.

    Args:
        schema: of the batches.
        want: what to keep.
        room_bytes: all rows are kept too, in `whole`, as long as they take no more than this.
    """

    def __init__(self, schema: pa.Schema, want: Want = EVERYTHING, *, room_bytes: int = 0) -> None:
        self.n_rows = 0
        self.sites: set[str] = set()
        self._schema = schema
        self._want = want
        self._taken: list[pa.RecordBatch] = []
        self._whole: list[pa.RecordBatch] | None = [] if room_bytes else None
        self._room_bytes = room_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next batch of the file, checked, in the columns of the schema."""
        self.n_rows += batch.num_rows
        if "site" in self._schema.names:
            site = batch["site"]  # a dictionary holds what its rows have
            self.sites.update((site.dictionary if self._want.is_encoded else pc.unique(site)).to_pylist())
        self._taken.append(self._want.of(batch))
        if self._whole is not None:
            self._room_bytes -= batch.nbytes
            self._whole.append(batch)
            if self._room_bytes < 0:
                self._whole = None

    def clear(self) -> None:
        """Forget everything: the file turned out not to be trusted."""
        self.n_rows = 0
        self.sites.clear()
        self._taken.clear()
        self._whole = None

    @property
    def table(self) -> pa.Table:
        """The wanted rows."""
        names = self._want.columns
        schema = self._schema if names is None else pa.schema([self._schema.field(name) for name in names])
        return pa.Table.from_batches(self._taken, schema)

    @property
    def whole(self) -> pa.Table | None:
        """All rows, if they are few."""
        return None if self._whole is None else pa.Table.from_batches(self._whole, self._schema)
