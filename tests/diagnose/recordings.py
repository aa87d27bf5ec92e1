"""Recordings that are made by hand: written by the writer, read by the reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from hypocenter.detect.step_columns import StepColumns
from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Reading, Run, StepRecord
from hypocenter.record.layout import rank_directory
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import encode
from hypocenter.record.schema import STEPS, batch_of, step_row
from hypocenter.record.writer import Writer

RUN = Run(format=1, name="0412", status="finished", exit_code=0)


def recording(
    directory: Path,
    records: Mapping[int, Sequence[StepRecord]] | None = None,
    rows: Mapping[int, Sequence[Reading]] | None = None,
    run: Run = RUN,
) -> RecordedRun:
    """What open_run gives of these records and readings of ranks."""
    records, rows = records or {}, rows or {}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_bytes(encode(run))
    for rank in sorted({*records, *rows}) or [0]:
        rank_directory(directory, rank).mkdir()
        writer = Writer(directory, rank=rank, warn=pytest.fail)
        writer.write(rows.get(rank, ()))
        for record in records.get(rank, ()):
            writer.write((), record)
        writer.close()
    return open_run(directory)


def put(recorded: RecordedRun, evidence: Evidence, rank: int = 0) -> None:
    """Add a piece of evidence."""
    folder = recorded.directory / f"rank-{rank:05d}" / "bundles" / f"step-{evidence.step:06d}-{evidence.trigger}"
    folder.mkdir(parents=True)
    (folder / "evidence.json").write_bytes(msgspec.json.encode(evidence))


def records_of(known: Mapping[tuple[int, int], StepRecord]) -> Records:
    """Step records by (rank, step) as a diagnosis has them."""
    by_rank: dict[int, list[StepRecord]] = {}
    for (rank, _), record in sorted(known.items()):
        by_rank.setdefault(rank, []).append(record)
    columns = {
        rank: StepColumns(pa.Table.from_batches([batch_of(STEPS, [step_row(each) for each in found])]))
        for rank, found in by_rank.items()
    }
    return Records(columns)
