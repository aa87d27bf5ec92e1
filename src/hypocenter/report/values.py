"""Readings one by one: a site's values over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import pyarrow as pa

from hypocenter.nouns import Reading
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report import wording
from hypocenter.report.columns import aligned


def in_words(table: pa.Table, room: int | None = None) -> Iterator[str]:
    """Yield a heading and one line per reading. `room`: as columns.aligned has it."""
    rows: list[tuple[str, ...]] = [
        (
            "step",
            "batch",
            "rank",
            "site",
            "what",
            "dtype",
            "shape",
            "min",
            "max",
            "|max|",
            "headroom",
            "values that stand out",
        )
    ]
    for rank, reading in zip(table["rank"].to_pylist(), readings_from(table.select(READINGS.names)), strict=True):
        rows.append(_row(rank, reading))
    yield from aligned(rows, right=frozenset({0, 1, 2, 7, 8, 9, 10}), room=room, name=3)


def _row(rank: int, reading: Reading) -> tuple[str, ...]:
    values = reading.summary
    site = f"{wording.clean(reading.site) or '(model)'} {wording.clean(reading.op)}".strip()
    mark = " (replay)" if reading.replay else ""
    is_digest = reading.digest is not None and not (values.n_hist or values.absmax or values.sumsq)
    size = ("digest", "") if is_digest else (wording.magnitude(values), wording.headroom(values, reading.dtype))
    return (
        str(reading.step), str(reading.microbatch), str(rank), site + mark,
        wording.port_name(reading.phase, reading.port),
        wording.clean(reading.dtype), wording.shape(reading.shape), _number(values.min), _number(values.max), *size,
        ", ".join(wording.chips(values)),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else wording.number(value)


def as_dicts(answer: Any) -> list[dict[str, Any]]:
    """Return the rows of a query's answer (an Arrow table or mappings) as dictionaries."""
    return answer.to_pylist() if isinstance(answer, (pa.Table, pa.RecordBatch)) else [dict(row) for row in answer]


def plain(found: Any) -> list[Any]:
    """Return a sequence of dataclasses or mappings, or an Arrow table, as dictionaries."""
    if isinstance(found, pa.Table):
        return found.to_pylist()
    return [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in found]


def query_in_words(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a heading and one line per row of a query's answer."""
    if not rows:
        yield "no rows"
        return
    names = list(rows[0])
    table = [names, *([_cell(row[name]) for name in names] for row in rows)]
    numeric = frozenset(i for i, name in enumerate(names) if isinstance(rows[0][name], (int, float)))
    yield from aligned(table, right=numeric)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return wording.number(value)
    return "" if value is None else wording.clean(str(value), at_most=80)
