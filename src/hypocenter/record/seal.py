"""Sealing: an ended stream becomes one Parquet file, a third of the size and quick to search."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from hypocenter.record.layout import FORMAT, sealed_path

_ROWS_PER_GROUP = 65_536  # rows of one Parquet row group; small batches are gathered until there are as many


def seal_stream(stream: Path) -> Path:
    """Copy every batch of an ended stream to Parquet beside it, then remove the stream.

    Raises:
        OSError, pyarrow.ArrowException: the stream is cut or cannot be read, or the copy not written; the stream stays.
    """
    with pa.OSFile(str(stream), "rb") as source, ipc.open_stream(source) as reader:
        target = write_batches(reader, reader.schema, sealed_path(stream))
    stream.unlink()
    return target


def write_sealed(table: pa.Table, stream: Path, *, started_ns: int) -> Path:
    """Write the rows salvaged from a stream to Parquet beside it.

    Raises:
        OSError: it cannot be written.
    """
    metadata = {"hypocenter.format": str(FORMAT), "hypocenter.started_ns": str(started_ns)}
    schema = table.schema.with_metadata(metadata)
    return write_batches(table.to_batches(), schema, sealed_path(stream))


def write_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, target: Path) -> Path:
    """Write a Parquet file that appears whole or not at all."""
    part = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        _write_groups(batches, schema, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())  # the stream may be removed next
        return part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _write_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema, part: Path) -> None:
    reals, others = _by_encoding(schema)
    encoding: dict[str, Any] = {"use_dictionary": others, "use_byte_stream_split": reals}
    gathered: list[pa.RecordBatch] = []
    with pq.ParquetWriter(part, schema, compression="zstd", store_schema=True, **encoding) as writer:
        for batch in batches:
            gathered.append(batch.replace_schema_metadata(schema.metadata))
            if sum(b.num_rows for b in gathered) >= _ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(gathered, schema))
                gathered = []
        if gathered:
            writer.write_table(pa.Table.from_batches(gathered, schema))


def _by_encoding(schema: pa.Schema) -> tuple[Sequence[str], Sequence[str]]:
    """Return the Parquet column paths of floating-point values, and those of the rest."""
    reals: list[str] = []
    others: list[str] = []
    for field in schema:
        is_list = pa.types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        path = f"{field.name}.list.element" if is_list else field.name
        (reals if pa.types.is_floating(kind) else others).append(path)
    return reals, others
