"""Rules by columns find what they find row by row, whatever looks at the ranks and in whatever parts."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.job_of_512.job import Job
from bench.job_of_512.simulate import write_job
from hypocenter.detect.engine import Engine
from hypocenter.detect.group_engine import GroupEngine
from hypocenter.diagnose import executors
from hypocenter.diagnose.diagnosis import diagnose, found_in
from hypocenter.diagnose.executors import Task
from hypocenter.diagnose.panels import panels_of
from hypocenter.diagnose.partial import Partial
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rows_by_step import RowsByStep
from hypocenter.errors import ConfigError
from hypocenter.nouns import Finding, Reading, StepRecord, Summary
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.schema import readings_from
from hypocenter.record.writer import Writer

GOLDEN = sorted(Path(__file__).resolve().parents[1].glob("golden/format-*"))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("job") / "run"
    write_job(run, Job(ranks=8, layers=1, steps=30, tp=2, pp=1), processes=1)
    return run


def is_same(run: Path) -> bool:
    by_columns = found_in(open_run(run))
    return repr(list(row_by_row(open_run(run)))) == repr(by_columns.findings)


def row_by_row(recorded: RecordedRun) -> Iterator[Finding]:
    """Every rule asked at every step, with all rows there are."""
    records, checker, over_ranks = Records.of(recorded), Engine(), GroupEngine(n_ranks=len(recorded.ranks))
    rows = RowsByStep()
    for rank in recorded.ranks:
        table = recorded.table(rank)
        rows.put(table)
        by_step: dict[int, list[Reading]] = defaultdict(list)
        for reading in readings_from(table):
            by_step[reading.step].append(reading)
        for step in sorted({*by_step, *(record.step for record in records.of_rank(rank))}):
            yield from checker.feed(rank, step, records.get(rank, step), by_step[step])
    for panel in panels_of(rows, records, ranks=recorded.ranks, places=recorded.places):
        yield from over_ranks.feed(panel)
    rows.close()


@pytest.mark.parametrize("run", GOLDEN, ids=lambda run: run.name)
def test_a_golden_recording_has_the_same_findings(run: Path):
    assert is_same(run)


def test_a_job_with_planted_faults_has_the_same_findings(job: Path):
    assert is_same(job)
    assert "HC313" in {f.code for f in found_in(open_run(job)).findings}


def batch(step: int, digest: int, shares: tuple[float, ...] = ()) -> Reading:
    summary = Summary(n=64, n_hist=64, min=0.0, max=9.0, absmax=9.0, sum=200.0 + step % 3, sumsq=1500.0)
    return Reading(
        step=step, microbatch=0, phase="data", site="batch.in[0]", port="digest", order=0, dtype="int64", shape=(4, 16),
        summary=summary, digest=digest, row_digests=tuple((digest * 4 + i) * 4096 + i for i in range(4)), shares=shares,
    )  # fmt: skip


@settings(max_examples=12)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 119), st.sampled_from(["loss", "norm", "batch", "share", "scale", "skip", "nan"])),
        max_size=4,
    )
)
def test_series_with_something_in_them_have_the_same_findings(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]]
):
    run = tmp_path_factory.mktemp("series") / "run"
    start_run(run, ["train.py"], {}, 1, {})
    writer = Writer(run, rank=0, warn=pytest.fail)
    at = set(changes)
    for step in range(120):
        digest = 1000 if (step, "batch") in at else 5 + step * 977
        share = 0.9 if (step, "share") in at else 0.2
        record = StepRecord(
            step=step, n_microbatches=1, loss=2.0 + 0.01 * (step % 5), grad_norm=1.0 + 0.1 * (step % 3), lr=1e-3
        )
        if (step, "loss") in at:
            record = replace(record, loss=200.0)
        if (step, "norm") in at:
            record = replace(record, grad_norm=80.0)
        if (step, "scale") in at:
            record = replace(record, loss_scale=2.0**45)
        if (step, "skip") in at:
            record = replace(record, skipped=True, loss_scale=1024.0)
        if (step, "nan") in at:
            record = replace(record, loss=float("nan"))
        writer.write([batch(step, digest, (share, *(0.1 for _ in range(10))))], record)
    writer.close()

    assert is_same(run)


@settings(max_examples=4)
@given(cuts=st.sets(st.integers(1, 6), max_size=4), order=st.randoms(use_true_random=False))
def test_parts_merge_in_any_order_to_the_same_answer(job: Path, cuts: set[int], order):
    task = Task(open_run(job), ())
    ranks, edges = task.recorded.ranks, [0, *sorted(cuts), 7]
    parts = [task.look(ranks[a:b]) for a, b in pairwise(edges)]
    order.shuffle(parts)

    merged = Partial()
    for part in parts:
        merged.merge(part)

    whole = task.look(ranks)
    assert {r: repr(look.findings) for r, look in sorted(merged.looks.items())} == {
        r: repr(look.findings) for r, look in sorted(whole.looks.items())
    }
    assert merged.sketch is not None
    assert whole.sketch is not None
    assert merged.sketch.is_alike == whole.sketch.is_alike


def test_processes_give_the_answer_of_one(job: Path):
    alone = diagnose(open_run(job))

    assert repr(diagnose(open_run(job), on="processes:2")) == repr(alone)


def dies_once(directory: str, ranks, plugins):
    mark = Path(directory).parent / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return executors.look_in_worker(directory, ranks, plugins)


def test_a_worker_that_is_killed_is_survived_and_said(job: Path, monkeypatch: pytest.MonkeyPatch):
    alone = diagnose(open_run(job))
    monkeypatch.setattr(executors, "work", dies_once)

    found = diagnose(open_run(job), on="processes:2")

    assert found.findings == alone.findings or repr(found.findings) == repr(alone.findings)
    assert found.notes == (*alone.notes, "a worker died 1 time: its ranks were looked at again")


def test_what_nobody_knows_is_one_error(job: Path):
    with pytest.raises(ConfigError, match="nothing to look at ranks on"):
        diagnose(open_run(job), on="abacus")
