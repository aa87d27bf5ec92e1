"""record/query.py: a query sees the two views, and nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.query import QueryError, sql
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.writer import Writer


@pytest.fixture
def run(tmp_path: Path) -> RecordedRun:
    for rank in range(2):
        writer = Writer(tmp_path / "run", rank=rank, warn=pytest.fail)
        for step in range(3):
            summary = Summary(n=8, absmax=float(10 * rank + step), hist=(1, 2))
            reading = Reading(step=step, microbatch=0, phase="grad", site="w", port="grad", order=1, summary=summary)
            writer.write([reading], StepRecord(step=step, loss=0.5 * step))
        writer.close(seal=rank == 0)
    return open_run(tmp_path / "run")


def test_joins_readings_and_steps(run: RecordedRun) -> None:
    found = sql(
        run, "select rank, step, absmax, loss from readings join steps using (rank, step) order by absmax desc limit 2"
    )

    assert found.to_pylist() == [
        {"rank": 1, "step": 2, "absmax": 12.0, "loss": 1.0},
        {"rank": 1, "step": 1, "absmax": 11.0, "loss": 0.5},
    ]


def test_reads_histograms_and_reserved_words(run: RecordedRun) -> None:
    found = sql(run, 'select distinct "order", list_sum(hist) as counted from readings')

    assert found.to_pylist() == [{"order": 1, "counted": 3}]


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')", "select * from read_text('/etc/passwd')",
        "select * from glob('/etc/*')",
        "select * from '/etc/passwd'", "copy readings to '{out}'", "attach '{out}'", "export database '{out}'",
        "set enable_external_access = true", "set lock_configuration = false", "install httpfs", "load httpfs",
        "select * from run", "copy (select 1) to '{out}' (format parquet)",
    ],
)  # fmt: skip
def test_a_query_reaches_nothing_outside(run: RecordedRun, tmp_path: Path, query: str) -> None:
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(QueryError):
        sql(run, query.format(out=tmp_path / "out"))

    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select nothing_such from readings", "nothing_such"),
        ("selec 1", "syntax error"),
        ("select * from elsewhere", "elsewhere"),
        ("", "it holds no SELECT"),
        ("select '\udcff'", "surrogate"),
    ],
)
def test_a_wrong_query_says_what_duckdb_says(run: RecordedRun, query: str, words: str) -> None:
    with pytest.raises(QueryError) as caught:
        sql(run, query)

    assert words in caught.value.why
    assert caught.value.where == query
