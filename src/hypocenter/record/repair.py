"""Batches out of values that do not fit their columns: each value is mended or replaced, a reading is never lost whole.

Only reached when the fast path (`schema.readings_batch`) has refused a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from hypocenter.nouns import Reading, Source, StepRecord, Summary
from hypocenter.record import schema


def repaired_readings_batch(readings: Sequence[object]) -> pa.RecordBatch:
    """Lay out what can be laid out; what is no Reading at all is left out."""
    return schema._readings_batch([_whole(r) for r in readings if isinstance(r, Reading)], mended_column)


def repaired_steps_batch(steps: Sequence[object]) -> pa.RecordBatch:
    """Lay out what can be laid out; what is no StepRecord at all is left out."""
    return schema.steps_batch_by([s for s in steps if isinstance(s, StepRecord)], mended_column)


def mended_column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """The column as it is when it fits, else with each value mended."""
    try:
        return schema.column(field, values)
    except Exception:
        return schema.column(field, [_mended(v, field.type, field.nullable) for v in values])


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
