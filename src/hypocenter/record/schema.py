"""The Arrow columns of readings and steps, and the way from nouns to columns and back.

Columns are built whole, never row by row: this runs inside the training process at each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

READINGS = pa.schema([*_OWN, *_SOURCE, *_SUMMARY])
"""Columns of a stream of readings: a Reading with its summary and source laid flat."""

_EXACT = frozenset(f.name for f in READINGS if not pa.types.is_floating(f.type) and f.name not in ("step", "sketch"))
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

_STEP = pa.struct(list(STEPS))
_STEPS_REQUIRED = tuple(field.name for field in STEPS if not field.nullable)


Build = Callable[[pa.Field, Sequence[Any]], pa.Array]

KEPT_ROWS = 1 << 12  # of a batch whose columns are kept for the next one


class LastColumns:
    """Builds columns; what has the same values as in the batch before, as most columns have from step to step, once.

    Not for floats, among which equal ones may differ (0.0 and -0.0).
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Sequence[Any], pa.Array]] = {}

    def __call__(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        """As `column`."""
        if field.name not in _EXACT or len(values) > KEPT_ROWS:
            return column(field, values)
        known = self._known.get(field.name)
        if known is not None and known[0] == values:
            return known[1]
        array = column(field, values)
        self._known[field.name] = values, array
        return array


def readings_batch(readings: Sequence[Reading], build: Build | None = None) -> pa.RecordBatch:
    """Lay readings out in columns.

    Args:
        build: of a column: `LastColumns()` kept by who writes many batches.

    Raises:
        Exception: of whatever kind pyarrow or Python raises for a value that its column cannot hold;
            `repaired_readings_batch` then stores what can be stored.
    """
    return _readings_batch(readings, build or column)


def steps_batch(steps: Sequence[StepRecord]) -> pa.RecordBatch:
    """Lay step records out in columns; raises as `readings_batch` does."""
    rows = [{name: getattr(step, name) for name in STEPS.names} for step in steps]
    for name in _STEPS_REQUIRED:
        if any(row[name] is None for row in rows):
            raise ValueError(f"column {name} has no value in some row")
    return pa.RecordBatch.from_struct_array(pa.array(rows, _STEP))  # of one row: a call per column costs more


def steps_batch_by(steps: Sequence[StepRecord], build: Build) -> pa.RecordBatch:
    """The same, column by column as `build` makes them."""
    return _batch(STEPS, [_attribute(name, steps) for name in STEPS.names], build)


def _readings_batch(readings: Sequence[Reading], build: Build) -> pa.RecordBatch:
    summaries = _attribute("summary", readings)
    columns = [
        *(_attribute(field.name, readings) for field in _OWN),
        *_source_columns(_attribute("source", readings)),
        *(_attribute(field.name, summaries) for field in _SUMMARY),
    ]
    return _batch(READINGS, columns, build)


def _source_columns(sources: Sequence[Source | None]) -> list[list[Any]]:
    if sources.count(None) == len(sources):  # the usual case: only traced rows have lines
        return [list(sources)] * len(_SOURCE)
    return [
        [None if s is None else s.file for s in sources],
        [None if s is None else s.line for s in sources],
        [None if s is None else s.text for s in sources],
        [None if s is None else s.function for s in sources],
    ]


def _attribute(name: str, rows: Sequence[Any]) -> list[Any]:
    return list(map(attrgetter(name), rows))  # twice as fast as a comprehension with getattr


def _batch(schema: pa.Schema, columns: Sequence[Sequence[Any]], build: Build) -> pa.RecordBatch:
    arrays = [build(field, values) for field, values in zip(schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """One column of one batch; raises when a value does not fit."""
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
_N_OWN, _N_SOURCE = len(_OWN), len(_SOURCE)
_TUPLES = tuple(_OWN_NAMES.index(name) for name in ("shape", "names"))
_TEXTS = tuple(_OWN_NAMES.index(name) for name in ("placement", "lacks"))
_HIST, _SKETCH = _SUMMARY_NAMES.index("hist"), _SUMMARY_NAMES.index("sketch")


def _reading(row: tuple[Any, ...]) -> Reading:
    """One row; a failed run of many ranks has millions of them."""
    own, values = list(row[:_N_OWN]), list(row[_N_OWN + _N_SOURCE :])
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
    return Reading(**dict(zip(_OWN_NAMES, own, strict=True)), summary=summary, source=source)


def steps_from(table: pa.Table | pa.RecordBatch) -> Iterator[StepRecord]:
    """Turn columns back into step records, in row order."""
    rows = [table.column(name).to_pylist() for name in STEPS.names]
    return (StepRecord(**dict(zip(STEPS.names, row, strict=True))) for row in zip(*rows, strict=True))
