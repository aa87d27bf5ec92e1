"""Answers as plain JSON values, and the answer of a query as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

import pyarrow as pa

from hypocenter.report import wording
from hypocenter.report.columns import aligned


def as_dicts(answer: Any) -> list[dict[str, Any]]:
    """The rows of a query's answer, an Arrow table or mappings."""
    return answer.to_pylist() if isinstance(answer, (pa.Table, pa.RecordBatch)) else [dict(row) for row in answer]


def plain(found: Any) -> list[Any]:
    """A sequence of dataclasses or mappings, or an Arrow table, as dictionaries."""
    if isinstance(found, pa.Table):
        return found.to_pylist()
    return [asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in found]


def in_words(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A heading and one line per row of a query's answer."""
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
