"""Rules by columns find what they find row by row, whatever looks at the ranks and in whatever parts."""

from __future__ import annotations

import subprocess
import sys
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
from hypocenter.diagnose.diagnosis import found_in
from hypocenter.diagnose.over_ranks import found_by, parted, rules_over_ranks
from hypocenter.diagnose.panels import panels_of
from hypocenter.diagnose.partial import Partial, look_at_ranks
from hypocenter.diagnose.records import Records
from hypocenter.diagnose.rows_by_step import RowsByStep
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
    recorded = open_run(job)
    ranks, edges = recorded.ranks, [0, *sorted(cuts), 7]
    parts = [look_at_ranks(recorded, ranks[a:b]) for a, b in pairwise(edges)]
    order.shuffle(parts)

    merged = Partial()
    for part in parts:
        merged.merge(part)

    whole = look_at_ranks(recorded, ranks)
    assert {r: repr(look.findings) for r, look in sorted(merged.looks.items())} == {
        r: repr(look.findings) for r, look in sorted(whole.looks.items())
    }
    assert merged.sketch is not None
    assert whole.sketch is not None
    assert merged.sketch.suspects == whole.sketch.suspects


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_rules_over_ranks_find_the_same_in_whatever_parts(job: Path, n: int):
    recorded = open_run(job)
    records, rules = Records.of(recorded), rules_over_ranks(recorded).rules
    parts = parted(rules, n)

    found = [each for part in parts for each in found_by(recorded, part, records)]

    assert sorted(code for part in parts for code in part) == [c for c, rule in rules.items() if rule.check is not None]
    whole = list(found_by(recorded, tuple(rules), records))
    assert whole
    assert repr(sorted(found, key=lambda each: each[:2])) == repr(whole)


FAILS = """
from hypocenter.detect.engine import rule
from hypocenter.detect.group_engine import group_rule

@rule("TEST1", "config", severity="note", reads=("all",))
def one(window):
    if window.rank == 2:
        raise ValueError("of rank 2")
    yield from ()

@group_rule("TEST2", "config", severity="note", reads=("digest",))
def over(panel):
    raise ValueError("of ranks")
"""


@pytest.mark.night
def test_a_rule_that_fails_in_a_worker_is_said(job: Path, tmp_path: Path):
    plugin, program = tmp_path / "fails.py", tmp_path / "program.py"  # in a process of its own: a plug-in stays
    plugin.write_text(FAILS)
    program.write_text(
        "from hypocenter.diagnose.diagnosis import diagnose\n"
        "from hypocenter.record.reader import open_run\n"
        f"if __name__ == '__main__': print(diagnose(open_run({str(job)!r}, 'processes:2'), [{str(plugin)!r}]).notes)\n"
    )

    found = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True).stdout

    assert "TEST1 did not load: ValueError: of rank 2" in found
    assert "TEST2 did not load: ValueError: of ranks" in found


def test_where_a_loss_jumped_rules_that_rows_wake_are_still_asked_at_their_rows_alone(tmp_path: Path, monkeypatch):
    start_run(tmp_path, ("x",), {}, 1, {}, {})
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    for step in range(200):
        loss = 1.0 + 0.01 * (step % 7) + 50.0 * (step == 150)
        record = StepRecord(step=step, n_microbatches=1, loss=loss, grad_norm=loss, lr=0.1, step_ms=5.0)
        rows = [batch(step, step)] if step == 20 else []
        writer.write(rows, record)
    writer.close()
    asked: dict[int, int] = {}
    ask = Engine.ask

    def counted(self, codes, rank, step, record, readings):
        asked[step] = len(tuple(codes))
        return ask(self, codes, rank, step, record, readings)

    monkeypatch.setattr(Engine, "ask", counted)
    findings = found_in(open_run(tmp_path)).findings

    assert "HC401" in {finding.code for finding in findings}
    assert asked[100] == 1  # of steps without rows: the rule of jumps alone, which looks at each
