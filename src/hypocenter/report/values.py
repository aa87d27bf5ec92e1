"""Readings one by one: a site's values over the steps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from hypocenter.nouns import Reading
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report import wording
from hypocenter.report.columns import aligned


def in_words(table: pa.Table) -> Iterator[str]:
    """A heading and one line per reading."""
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
    yield from aligned(rows, right=frozenset({0, 1, 2, 7, 8, 9, 10}))


def _row(rank: int, reading: Reading) -> tuple[str, ...]:
    values = reading.summary
    site = f"{wording.clean(reading.site) or '(model)'} {wording.clean(reading.op)}".strip()
    mark = " (replay)" if reading.replay else ""
    is_digest = reading.digest is not None and not (values.n_hist or values.absmax or values.sumsq)
    size = ("digest", "") if is_digest else (wording.magnitude(values), wording.headroom(values, reading.dtype))
    return (
        str(reading.step), str(reading.microbatch), str(rank), site + mark, wording.clean(reading.port),
        wording.clean(reading.dtype), wording.shape(reading.shape), _number(values.min), _number(values.max), *size,
        ", ".join(wording.chips(values)),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else wording.number(value)
