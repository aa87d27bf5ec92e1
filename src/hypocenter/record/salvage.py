"""What can be trusted of one stream or sealed file: every whole batch, and one line about the rest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from hypocenter.errors import CorruptRecordingError
from hypocenter.record.layout import FORMAT, SEALED_SUFFIX

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow IPC: continuation mark, then metadata of no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """The rows of one file in the columns of its schema."""

    table: pa.Table
    problem: str = ""  # empty: the file is whole
    started_ns: int = 0  # when its writer opened it, Unix time; 0 when unknown
    is_ended: bool = True  # no writer will add to it


def salvage(path: Path, schema: pa.Schema) -> Salvaged:
    """Read a stream or a sealed file as far as it can be trusted.

    Raises:
        FileNotFoundError: it is gone (sealed by another process in the meantime).
        CorruptRecordingError: it was written by a newer Hypocenter.
    """
    if path.suffix == SEALED_SUFFIX:
        return _salvage_sealed(path, schema)
    return _salvage_stream(path, schema)


def sealed_rows(path: Path) -> int:
    """How many rows a sealed file claims to hold; -1 when it cannot be read."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except Exception:
        return -1


def _salvage_stream(path: Path, schema: pa.Schema) -> Salvaged:
    batches: list[pa.RecordBatch] = []
    started_ns = 0
    try:
        with pa.OSFile(str(path), "rb") as file, ipc.open_stream(file) as reader:
            started_ns = _started_ns(reader.schema, path)
            problem = _read_whole_batches(reader, schema, batches)
    except (CorruptRecordingError, FileNotFoundError):
        raise
    except Exception as error:  # hostile bytes: any error of Arrow's, of any class, is a verdict on the file
        problem = f"holds nothing readable ({_first_line(error)})"
    table = pa.Table.from_batches(batches, schema)
    return Salvaged(table=table, problem=problem, started_ns=started_ns, is_ended=not problem and _has_end(path))


def _read_whole_batches(reader: pa.RecordBatchReader, schema: pa.Schema, batches: list[pa.RecordBatch]) -> str:
    """Add batches up to the end or the first damage; say what the damage is."""
    try:
        batches.extend(_fitted(batch, schema) for batch in reader)
    except Exception as error:
        return f"cut or damaged after {sum(b.num_rows for b in batches):,} rows ({_first_line(error)})"
    return ""


def _salvage_sealed(path: Path, schema: pa.Schema) -> Salvaged:
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table: that goes through pyarrow.dataset, which costs 100 ms to import.
        with pq.ParquetFile(path) as file:
            started_ns = _started_ns(file.schema_arrow, path)
            batches = [_fitted(batch, schema) for batch in file.iter_batches()]
        return Salvaged(table=pa.Table.from_batches(batches, schema), started_ns=started_ns)
    except (CorruptRecordingError, FileNotFoundError):
        raise
    except Exception as error:
        return Salvaged(table=schema.empty_table(), problem=f"cannot be read ({_first_line(error)})")


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in the columns of `schema`, checked down to each offset and each character."""
    batch.validate(full=True)
    arrays: list[pa.Array] = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0 and field.nullable:  # a column that came later
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        if at < 0:
            raise ValueError(f"column {field.name!r} is missing")
        array = batch.column(at)
        if array.type != field.type:
            array = array.cast(field.type)
        if array.null_count and not field.nullable:
            raise ValueError(f"column {field.name!r} has no value in some rows")
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _started_ns(found: pa.Schema, path: Path) -> int:
    metadata = found.metadata or {}
    written_as = metadata.get(b"hypocenter.format", b"")
    if written_as.isdigit() and int(written_as[:9]) > FORMAT:
        raise newer_format(int(written_as[:9]), path)
    started = metadata.get(b"hypocenter.started_ns", b"")
    return int(started) if started.isdigit() and len(started) < 20 else 0


def newer_format(written_as: int, path: Path) -> CorruptRecordingError:
    """The error for a recording of a later format than this version knows."""
    return CorruptRecordingError(
        f"the recording has format {written_as}, this version reads up to {FORMAT}",
        where=str(path),
        why="it was written by a newer Hypocenter",
        fix="pip install --upgrade hypocenter",
    )


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(_END_OF_STREAM)))
        return file.read() == _END_OF_STREAM


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()
    return (text[0] if text else type(error).__name__)[:160]
