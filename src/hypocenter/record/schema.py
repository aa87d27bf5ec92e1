"""The Arrow columns of readings and steps, and the way from nouns to rows, to columns, and back.

A row is a tuple of plain values, one for each column of `READINGS` or `STEPS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from hypocenter.nouns import Reading, Source, StepRecord, Summary


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


_OWN = (
    _required("step", pa.int64()),
    _required("microbatch", pa.int32()),
    _required("phase", pa.string()),
    _required("site", pa.string()),
    _required("port", pa.string()),
    _required("order", pa.int64()),
    _required("call", pa.int32()),
    _required("dtype", pa.string()),
    _required("shape", pa.list_(pa.int64())),
    _required("module", pa.string()),
    _required("names", pa.list_(pa.string())),
    _required("op", pa.string()),
    _required("recompute", pa.bool_()),
    _required("replay", pa.bool_()),
    _required("literal_inf", pa.bool_()),
    pa.field("digest", pa.int64()),  # these three came later: older files have no such columns
    pa.field("placement", pa.string()),
    pa.field("lacks", pa.string()),
)
_SOURCE = (
    pa.field("source_file", pa.string()),
    pa.field("source_line", pa.int64()),
    pa.field("source_text", pa.string()),
    pa.field("source_function", pa.string()),
)
_SUMMARY = (
    *(_required(n, pa.int64()) for n in ("n", "n_nan", "n_posinf", "n_neginf", "n_hist", "n_zero", "n_subnormal")),
    *(pa.field(n, pa.float64()) for n in ("min", "max", "absmin")),
    *(_required(n, pa.float64()) for n in ("absmax", "sum", "sumsq")),
    _required("hist_first", pa.int32()),
    _required("hist", pa.list_(pa.int64())),
    pa.field("sketch", pa.list_(pa.float32())),
)
_LATER = (  # at the end: rows of an older journal have no such values
    pa.field("row_digests", pa.list_(pa.int64())),
    pa.field("shares", pa.list_(pa.float32())),
)

READINGS = pa.schema([*_OWN, *_SOURCE, *_SUMMARY, *_LATER])
"""Columns of a stream of readings: a Reading with its summary and source laid flat."""

_LISTS = frozenset(f.name for f in READINGS if pa.types.is_list(f.type))

STEPS = pa.schema(
    [
        _required("step", pa.int64()),
        _required("n_microbatches", pa.int32()),
        *(pa.field(n, pa.float64()) for n in ("loss", "grad_norm", "loss_scale", "lr")),
        _required("skipped", pa.bool_()),
        *(_required(n, pa.float64()) for n in ("step_ms", "tap_ms")),
        _required("n_bad_grads", pa.int64()),
        _required("finding", pa.string()),
    ]
)
"""Columns of a stream of steps: a StepRecord."""


def encoded(schema: pa.Schema) -> pa.Schema:
    """Return the columns with words as numbers into a dictionary: each word is compared once, not in every row."""
    words = pa.dictionary(pa.int32(), pa.string())
    return pa.schema([f.with_type(words) if f.type == pa.string() else f for f in schema])


Row = tuple[Any, ...]

_own_values = attrgetter(*(field.name for field in _OWN))
_summary_values = attrgetter(*(field.name for field in _SUMMARY))
_later_values = attrgetter(*(field.name for field in _LATER))
_step_values = attrgetter(*STEPS.names)
_NO_SOURCE = (None,) * len(_SOURCE)


def reading_row(reading: Reading) -> Row:
    """Return the values of a reading, in the order of `READINGS`."""
    source = reading.source
    lines = _NO_SOURCE if source is None else (source.file, source.line, source.text, source.function)
    return (*_own_values(reading), *lines, *_summary_values(reading.summary), *_later_values(reading))


def whole_row(values: Sequence[Any]) -> Row:
    """Return a row as it was written, with None for columns of _LATER that an older version did not have."""
    return (*values, *(None for _ in _LATER)) if len(values) == len(READINGS) - len(_LATER) else tuple(values)


def step_row(step: StepRecord) -> Row:
    """Return the values of a step record, in the order of `STEPS`."""
    return _step_values(step)


def readings_batch(readings: Iterable[Reading]) -> pa.RecordBatch:
    """Lay readings out in columns; raises as `batch_of` does."""
    return batch_of(READINGS, list(map(reading_row, readings)))


def steps_batch(steps: Iterable[StepRecord]) -> pa.RecordBatch:
    """Lay step records out in columns; raises as `batch_of` does."""
    return batch_of(STEPS, list(map(step_row, steps)))


def batch_of(
    schema: pa.Schema, rows: Sequence[Row], build: Callable[[pa.Field, Sequence[Any]], pa.Array] | None = None
) -> pa.RecordBatch:
    """Lay rows out in columns.

    Args:
        schema: READINGS or STEPS.
        rows: values in the order of its columns.
        build: what makes one column of a field and its values; `column` if not given.

    Raises:
        Exception: of whatever kind pyarrow or Python raises for a value that its column cannot hold;
            `hypocenter.record.repair` then stores what can be stored.
    """
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [(build or column)(field, values) for field, values in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return one column of one batch; raises when a value does not fit."""
    if field.name in _LISTS:
        array = _list_column(field, values)
    else:
        array = pa.array(values, field.type)
    if array.null_count and not field.nullable:
        raise ValueError(f"column {field.name} has no value in some row")
    return array


_NUMPY = {pa.int64(): np.int64, pa.float32(): np.float32}  # to_pandas_dtype() of older pyarrow needs pandas


def _list_column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    item = field.type.value_type
    if field.nullable or pa.types.is_string(item):
        return pa.array(values, field.type)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    flat = np.fromiter(chain.from_iterable(values), _NUMPY[item], int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat, item))


def readings_from(table: pa.Table | pa.RecordBatch) -> Iterator[Reading]:
    """Turn columns back into readings, in row order."""
    for batch in table.to_batches(8192) if isinstance(table, pa.Table) else [table]:
        rows = [batch.column(name).to_pylist() for name in READINGS.names]
        yield from (_reading(row) for row in zip(*rows, strict=True))


_OWN_NAMES = tuple(f.name for f in _OWN)
_SUMMARY_NAMES = tuple(f.name for f in _SUMMARY)
_N_OWN, _N_SOURCE, _N_LATER = len(_OWN), len(_SOURCE), len(_LATER)
_TUPLES = tuple(_OWN_NAMES.index(name) for name in ("shape", "names"))
_TEXTS = tuple(_OWN_NAMES.index(name) for name in ("placement", "lacks"))
_HIST, _SKETCH = _SUMMARY_NAMES.index("hist"), _SUMMARY_NAMES.index("sketch")


def _reading(row: tuple[Any, ...]) -> Reading:
    """Turn one row into a reading, fast: a failed run of many ranks has millions of rows."""
    own, values = list(row[:_N_OWN]), list(row[_N_OWN + _N_SOURCE : -_N_LATER])
    for at in _TUPLES:
        own[at] = tuple(own[at])
    for at in _TEXTS:
        own[at] = own[at] or ""
    values[_HIST] = tuple(values[_HIST])
    if values[_SKETCH] is not None:
        values[_SKETCH] = tuple(values[_SKETCH])
    file, line, text, function = row[_N_OWN : _N_OWN + _N_SOURCE]
    source = None if file is None else Source(file=file, line=line or 0, text=text or "", function=function or "")
    summary = Summary(**dict(zip(_SUMMARY_NAMES, values, strict=True)))
    row_digests, shares = (tuple(each or ()) for each in row[-_N_LATER:])
    return Reading(
        **dict(zip(_OWN_NAMES, own, strict=True)),
        summary=summary,
        source=source,
        row_digests=row_digests,
        shares=shares,
    )


def steps_from(table: pa.Table | pa.RecordBatch) -> Iterator[StepRecord]:
    """Turn columns back into step records, in row order."""
    rows = [table.column(name).to_pylist() for name in STEPS.names]
    return (StepRecord(**dict(zip(STEPS.names, row, strict=True))) for row in zip(*rows, strict=True))
