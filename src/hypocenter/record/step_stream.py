"""The readings of one rank batch by batch, in the order they were written: for questions about millions of rows.

`RecordedRun.scan` gives a rank's rows as one table; here only a batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from hypocenter.record.gather import Want
from hypocenter.record.layout import SEALED_SUFFIX, sealed_path
from hypocenter.record.rank_files import Part, parts_of
from hypocenter.record.salvage import Verdict, salvage, sealed_batches, sealed_rows, stream_batches
from hypocenter.record.schema import READINGS


class StepStream:
    """Batches of the columns asked for. `problem` is what turned out to be damaged, once all were taken.

    Args:
        path: the one file that holds a rank's readings.
        columns: names, of record.schema.READINGS.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.problem = ""
        self._path = path
        self._schema = pa.schema([READINGS.field(name) for name in columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        verdict = Verdict()
        read = sealed_batches if self._path.suffix == SEALED_SUFFIX else stream_batches
        try:
            yield from read(self._path, self._schema, verdict, projected=True)
        except FileNotFoundError:
            verdict.problem = "vanished while it was read"
        if verdict.problem:
            self.problem = f"{self._path.parent.name}/{self._path.name}: {verdict.problem}"


def only_file(folder: Path) -> Path | None:
    """The file with all readings of a rank; None when several processes wrote them, or none did."""
    try:
        parts = [part for part in parts_of(folder) if part.kind == "events"]
    except OSError:
        return None
    return _fuller(parts[0]) if len(parts) == 1 else None


def _fuller(part: Part) -> Path:
    """Of a stream and its sealed form the one with more rows."""
    sealed = sealed_path(part.stream)
    if not sealed.exists() or not part.stream.exists():
        return part.stream if part.stream.exists() else sealed
    n_streamed = salvage(part.stream, READINGS, Want(columns=("step",))).n_rows
    return sealed if sealed_rows(sealed) > n_streamed else part.stream
