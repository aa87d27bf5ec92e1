"""What can be trusted of one stream or sealed file: every whole batch, and one line about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from hypocenter.errors import CorruptRecordingError, first_line
from hypocenter.record.gather import EVERYTHING, Gathered, Want
from hypocenter.record.journal import Journaled, read_journal
from hypocenter.record.layout import FORMAT, SEALED_SUFFIX, journal_path
from hypocenter.record.schema import encoded

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # Arrow IPC: continuation mark, then metadata of no bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """The wanted rows of one file, and what state the file is in."""

    table: pa.Table
    problem: str = ""  # empty: the file is whole
    started_ns: int = 0  # when its writer opened it, Unix time; 0 when unknown
    is_ended: bool = True  # no writer will add to it
    n_rows: int = 0  # whole rows in the file, wanted or not
    sites: frozenset[str] = frozenset()  # that the file names
    whole: pa.Table | None = None  # all its rows, if they are few and were asked for


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was found out while the batches of a file were read."""

    problem: str = ""
    started_ns: int = 0
    n_rows: int = 0


def salvage(path: Path, schema: pa.Schema, want: Want = EVERYTHING, *, room_bytes: int = 0) -> Salvaged:
    """Read a stream or a sealed file as far as it can be trusted, batch by batch.

    Args:
        path: the file.
        schema: columns of its kind.
        want: rows and columns to keep. With columns given only these are read and checked.
        room_bytes: give all rows as well when they take no more than this.

    Raises:
        FileNotFoundError: it is gone (sealed by another process in the meantime).
        CorruptRecordingError: it was written by a newer Hypocenter.
    """
    wanted = want.reads
    part = schema if wanted is None else pa.schema([schema.field(name) for name in wanted])
    part = encoded(part) if want.is_encoded else part
    gathered, verdict = Gathered(part, want, room_bytes=room_bytes), Verdict()
    is_sealed = path.suffix == SEALED_SUFFIX
    for batch in (sealed_batches if is_sealed else stream_batches)(path, part, verdict, projected=wanted is not None):
        gathered.add(batch)
    if is_sealed and verdict.problem:
        gathered.clear()
    return Salvaged(
        table=gathered.table,
        problem=verdict.problem,
        started_ns=verdict.started_ns,
        is_ended=is_sealed or (not verdict.problem and _has_end(path)),
        n_rows=gathered.n_rows,
        sites=frozenset(gathered.sites),
        whole=gathered.whole,
    )


def sealed_rows(path: Path) -> int:
    """Return how many rows a sealed file claims to hold; -1 when it cannot be read."""
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except Exception:
        return -1


def stream_batches(path: Path, schema: pa.Schema, verdict: Verdict, *, projected: bool) -> Iterator[pa.RecordBatch]:
    """Yield whole batches up to the end or damage, then what only the journal holds; `verdict` names damage."""
    journal = read_journal(journal_path(path))
    n_batches, is_open = 0, False
    try:
        fields = _positions(path, schema) if projected else []
        options = ipc.IpcReadOptions(use_threads=False, included_fields=fields)
        with pa.OSFile(str(path), "rb") as file, ipc.open_stream(file, options=options) as reader:
            verdict.started_ns = _started_ns(reader.schema, path)
            is_open = True
            for batch in reader:
                n_batches += 1
                if batch.num_rows:
                    whole = fitted(batch, schema)
                    verdict.n_rows += whole.num_rows
                    yield whole
    except (CorruptRecordingError, FileNotFoundError):
        raise
    except Exception as error:  # hostile bytes: any error of Arrow's, of any class, is a verdict on the file
        until = f"cut or damaged after {verdict.n_rows:,} rows" if is_open else "holds nothing readable"
        verdict.problem = f"{until} ({first_line(error)})"
    if journal is not None:
        yield from _latest(journal, path, n_batches, schema, verdict)


def _latest(
    journal: Journaled, path: Path, n_batches: int, schema: pa.Schema, verdict: Verdict
) -> Iterator[pa.RecordBatch]:
    """Yield what the journal holds of a stream, if the stream does not hold it yet."""
    is_of_events = path.name.startswith("events-")
    n_before = journal.head.events if is_of_events else journal.head.steps
    if n_before >= 0 and n_batches > max(n_before, 1):  # a stream that came later began with an empty batch
        return
    batch = journal.events if is_of_events else journal.steps
    verdict.problem = verdict.problem or journal.problem
    if batch is not None:
        verdict.n_rows += batch.num_rows
        yield fitted(batch, schema)


def _positions(path: Path, schema: pa.Schema) -> Sequence[int]:
    """Return where the wanted columns are in a stream; a column of a later version may be missing."""
    with pa.OSFile(str(path), "rb") as file, ipc.open_stream(file) as reader:
        found = (reader.schema.get_field_index(name) for name in schema.names)
        return [at for at in found if at >= 0]


def sealed_batches(path: Path, schema: pa.Schema, verdict: Verdict, *, projected: bool) -> Iterator[pa.RecordBatch]:
    """Yield batches of a sealed file; if `verdict` says that something is wrong, none can be trusted."""
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table: that goes through pyarrow.dataset, which costs 100 ms to import.
        words = [field.name for field in schema if pa.types.is_dictionary(field.type)]
        with pq.ParquetFile(path, read_dictionary=words) as file:
            verdict.started_ns = _started_ns(file.schema_arrow, path)
            present = set(file.schema_arrow.names)
            names = [name for name in schema.names if name in present]
            for group in range(file.num_row_groups):
                known = constant_columns(file, group, schema)
                columns = [name for name in names if name not in known] or names[:1]
                at = 0
                for batch in file.iter_batches(row_groups=[group], columns=columns, use_threads=False):
                    yield fitted(batch, schema, {name: each.slice(at, batch.num_rows) for name, each in known.items()})
                    at += batch.num_rows
    except (CorruptRecordingError, FileNotFoundError):
        raise
    except Exception as error:
        verdict.problem = f"cannot be read ({first_line(error)})"


def fitted(
    batch: pa.RecordBatch, schema: pa.Schema, known: Mapping[str, pa.Array] = MappingProxyType({})
) -> pa.RecordBatch:
    """Return the batch in the columns of `schema`, checked down to each offset and each character.

    Args:
        batch: as it was read.
        schema: columns that are wanted.
        known: some of them, in their types, that were not read.
    """
    batch.validate(full=True)
    arrays: list[pa.Array] = []
    for field in schema:
        if field.name in known:
            arrays.append(known[field.name])
            continue
        at = batch.schema.get_field_index(field.name)
        if at < 0 and field.nullable:  # a column that came later
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        if at < 0:
            raise ValueError(f"column {field.name!r} is missing")
        array = batch.column(at)
        if array.type != field.type:
            is_plain = pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(array.type)
            array = (array.dictionary_encode() if is_plain else array).cast(field.type)
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
    """Return the error for a recording of a later format than this version knows."""
    return CorruptRecordingError(
        f"the recording has format {written_as}, this version reads up to {FORMAT}",
        where=str(path),
        why="it was written by a newer Hypocenter",
        fix="update Hypocenter as it was installed; in a clone: git pull, then pip install .",
    )


def _has_end(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(_END_OF_STREAM)))
        return file.read() == _END_OF_STREAM


# Columns of a Parquet file that hold one value only, by what its footer says of them: nothing of them is read.

_IN_LISTS = ".list.element"
_STORED = {pa.int64(): "INT64", pa.int32(): "INT32", pa.bool_(): "BOOLEAN", pa.string(): "BYTE_ARRAY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is asked about one column of a schema."""

    kind: pa.DataType
    stored: str  # physical type; "" of reals: smallest and largest leave NaN out, and tell nothing of the sign of 0
    empty: Any  # its value where a file has none
    may_be_empty: bool


def constant_columns(file: pq.ParquetFile, group: int, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the constant columns of one row group of a file, in the types of `schema`.

    Args:
        file: open.
        group: number of the row group.
        schema: columns that are wanted; a file may hold others, and lack some.
    """
    found: dict[str, pa.Array] = {}
    footer, known = file.metadata.row_group(group), _known(schema)
    n = footer.num_rows
    for at in range(footer.num_columns):
        column = footer.column(at)
        name: str = column.path_in_schema
        about = known.get(name)
        if about is None or not column.is_stats_set:
            continue
        told = column.statistics
        if told.has_min_max:
            if told.null_count or column.physical_type != about.stored or told.min != told.max:
                continue
            value = told.min
        elif about.may_be_empty and told.null_count == column.num_values == n:
            value = about.empty
        else:
            continue
        found[name.removesuffix(_IN_LISTS)] = _filled(about.kind, value, n)
    return found


@lru_cache(maxsize=16)
def _known(schema: pa.Schema) -> dict[str, _Known]:
    """Return what is asked about each column, by its path in a file."""
    found: dict[str, _Known] = {}
    for field in schema:
        is_list = pa.types.is_list(field.type)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        found[field.name + _IN_LISTS * is_list] = _Known(
            kind=field.type, stored=_STORED.get(plain, ""), empty=None if field.nullable else (),
            may_be_empty=field.nullable != is_list,  # of a list that may be missing an empty one looks like none
        )  # fmt: skip
    return found


@lru_cache(maxsize=64)
def _filled(kind: pa.DataType, value: Any, n: int) -> pa.Array:
    if value is None:
        return pa.nulls(n, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.nulls(0, kind.value_type))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, kind.index_type), n), pa.array([value]))
    return pa.repeat(pa.scalar(value, kind), n)
