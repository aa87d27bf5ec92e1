"""A recording as three tables: readings and steps as format.md has them, with `rank`, and findings."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from hypocenter.json_answer import to_json
from hypocenter.nouns import Diagnosis, Finding
from hypocenter.record.reader import RecordedRun
from hypocenter.record.schema import READINGS, STEPS

_RANK = pa.field("rank", pa.int32(), nullable=False)
FINDINGS = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("severity", "code", "kind", "title")),
        *(pa.field(name, pa.int64()) for name in ("step", "microbatch", "rank")),
        *(pa.field(name, pa.string()) for name in ("phase", "site", "port", "param", "op", "source_file")),
        pa.field("source_line", pa.int64()),
        *(pa.field(name, pa.string()) for name in ("cause", "confidence", "fix")),
        pa.field("is_fix_verified", pa.bool_()),
        pa.field("count", pa.int64()),
        pa.field("whole", pa.string()),  # the entry of diagnosis.json
    ]
)
SCHEMAS = {"readings": READINGS.append(_RANK), "steps": STEPS.append(_RANK), "findings": FINDINGS}
"""Columns by the name of the table."""


def parts(recording: RecordedRun, diagnosis: Diagnosis, name: str) -> Iterator[pa.Table]:
    """Yield the rows of a table, rank by rank, so that a job of many ranks need not fit into memory."""
    if name == "findings":
        yield pa.Table.from_pylist([_row(finding) for finding in diagnosis.findings], schema=FINDINGS)
        return
    schema = SCHEMAS[name]
    for rank in recording.ranks:
        table = recording.steps(rank) if name == "steps" else next(t for _, t in recording.scan(ranks=[rank]))
        yield table.select(schema.names).cast(schema)


def _row(finding: Finding) -> dict[str, object]:
    named: dict[str, object] = {name: getattr(finding, name, None) for name in FINDINGS.names}
    source, remedy = finding.source, finding.remedy
    return named | {
        "source_file": source.file if source else None, "source_line": source.line if source else None,
        "fix": remedy.text if remedy else None, "is_fix_verified": remedy.verified if remedy else None,
        "whole": to_json(finding),
    }  # fmt: skip
