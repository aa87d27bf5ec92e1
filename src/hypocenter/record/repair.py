"""Rows and batches out of values that do not fit their columns: each value is mended or replaced, no row is lost.

Only reached when the fast path (`schema.batch_of`) has refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from hypocenter.nouns import Reading, Source, StepRecord, Summary
from hypocenter.record.schema import READINGS, STEPS, Row, batch_of, column, reading_row, step_row

Mended = Callable[[Exception], None]
"""Told of the first value that could not be kept as it was."""


def laid_out(schema: pa.Schema, rows: Sequence[Row], mended: Mended) -> pa.RecordBatch:
    """Lay rows out in columns, with what does not fit mended.

    Args:
        schema: READINGS or STEPS.
        rows: values in the order of its columns.
        mended: called if anything was.
    """
    try:
        return batch_of(schema, rows)
    except Exception as error:
        mended(error)
        return batch_of(schema, rows, mended_column)


def rows_of(readings: Sequence[Reading], steps: Sequence[StepRecord], mended: Mended) -> tuple[list[Row], list[Row]]:
    """Return rows of readings and of step records; what is neither is left out, and `mended` told of it."""
    try:
        return list(map(reading_row, readings)), list(map(step_row, steps))
    except Exception as error:
        mended(error)
        return mended_rows(readings), mended_rows(steps)


def mended_rows(things: Iterable[object]) -> list[Row]:
    """Return rows of readings or of step records, of plain values that fit; what is neither is left out."""
    kept = list(things)
    readings = [reading_row(_whole(each)) for each in kept if isinstance(each, Reading)]
    steps = [step_row(each) for each in kept if isinstance(each, StepRecord)]
    return [
        row
        for schema, rows in ((READINGS, readings), (STEPS, steps))
        for row in zip(*(each.to_pylist() for each in batch_of(schema, rows, mended_column).columns), strict=True)
    ]


def mended_column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """Return the column as it is when it fits, else with each value mended."""
    try:
        return column(field, values)
    except Exception:
        return column(field, [_mended(v, field.type, field.nullable) for v in values])


def _whole(reading: Reading) -> Reading:
    return replace(
        reading,
        summary=reading.summary if _is_a(Summary, reading.summary) else Summary(),
        source=reading.source if _is_a(Source, reading.source) else None,
    )


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _mended(value: Any, kind: pa.DataType, nullable: bool) -> Any:
    if value is None and nullable:
        return None
    try:
        return _converted(value, kind)
    except Exception:
        return None if nullable else _EMPTY[_family(kind)]


_EMPTY: dict[str, Any] = {"list": [], "text": "", "flag": False, "integer": 0, "real": float("nan")}


def _family(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return "list"
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "flag"
    return "integer" if pa.types.is_integer(kind) else "real"


def _converted(value: Any, kind: pa.DataType) -> Any:
    family = _family(kind)
    if family == "list":
        items: Iterable[Any] = value if value is not None else ()
        return [_mended(item, kind.value_type, nullable=False) for item in items]
    if family == "text":
        text = "" if value is None else str(value)
        return text.encode("utf-8", "backslashreplace").decode()
    if family == "flag":
        return bool(value)
    if family == "real":
        return float(value)
    largest = 2 ** (kind.bit_width - 1) - 1
    return max(-largest - 1, min(largest, int(value)))
