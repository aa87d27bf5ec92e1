"""Sealing: an ended stream becomes one Parquet file, a third of the size and quick to search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from hypocenter.record.layout import sealed_path

_ROWS_PER_GROUP = 65_536  # rows of one Parquet row group; small batches are gathered until there are as many


def seal_stream(stream: Path, *, keep: bool = False) -> Path:
    """Copy every batch of an intact stream to Parquet beside it, then remove the stream unless `keep`.

    The Parquet file appears whole or not at all.

    Raises:
        OSError, pyarrow.ArrowException: the stream is cut or cannot be read or the copy not written; the stream stays.
    """
    target = sealed_path(stream)
    part = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        _copy(stream, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    if not keep:
        stream.unlink()
    return target


def _copy(stream: Path, part: Path) -> None:
    with pa.OSFile(str(stream), "rb") as source, pa.ipc.open_stream(source) as reader:
        schema = reader.schema
        reals, others = _by_encoding(schema)
        with pq.ParquetWriter(
            part, schema, compression="zstd", use_dictionary=others, use_byte_stream_split=reals, store_schema=True
        ) as writer:
            gathered: list[pa.RecordBatch] = []
            for batch in reader:
                gathered.append(batch)
                if sum(b.num_rows for b in gathered) >= _ROWS_PER_GROUP:
                    writer.write_table(pa.Table.from_batches(gathered, schema))
                    gathered = []
            if gathered:
                writer.write_table(pa.Table.from_batches(gathered, schema))
    with part.open("rb") as file:
        os.fsync(file.fileno())  # the stream is removed next


def _by_encoding(schema: pa.Schema) -> tuple[Sequence[str], Sequence[str]]:
    """Parquet column paths of floating-point values, and of the rest."""
    reals: list[str] = []
    others: list[str] = []
    for field in schema:
        is_list = pa.types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        path = f"{field.name}.list.element" if is_list else field.name
        (reals if pa.types.is_floating(kind) else others).append(path)
    return reals, others
