"""Rules over ranks find in the ranks that are not alike what they find when they look at all."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.job_of_512.job import Faults, Job
from bench.job_of_512.simulate import rank_rows
from hypocenter.diagnose.diagnosis import found_in
from hypocenter.diagnose.over_ranks import found_by, rules_over_ranks
from hypocenter.diagnose.partial import look_at_job
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Attempt, Finding, Reading, StepRecord
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer

STEPS = 16
BATCH, FIRST, LAST = "batch.in[0]", "embedding.word_embeddings.weight", "output_layer.weight"


class Healthy(Job):
    """One without the faults that it comes with."""

    @property
    def faults(self) -> Faults:
        return Faults(
            nan_rank=0, nan_step=10**9, nan_param="", drift_rank=0, drift_step=10**9, drift_param="",
            missing_rank=-1, cut_rank=-1,
        )  # fmt: skip


JOB = Healthy(ranks=16, layers=2, steps=STEPS, tp=2, pp=2, digest_every=4)
Fault = tuple[str, int, int]  # what, rank, step from which on
FAULTS = (
    "drift", "gradient", "tokens", "batch", "stream", "norm", "rate", "scale", "skip", "clip", "nan before", "nan",
    "loss", "tied", "overflow",
)  # fmt: skip


@cache
def healthy_rows(rank: int, step: int) -> tuple[Reading, ...]:
    """Its rows, with a tied embedding, and a batch of rows of numbers."""
    at = JOB.coords(rank)
    first = JOB.rank_at(dp=at.dp or 0, pp=0, tp=at.tp or 0)
    tied = {row.port: row.digest for row in rank_rows(JOB, first, step) if row.site == FIRST}
    rows: list[Reading] = []
    for row in rank_rows(JOB, rank, step):
        if row.site == "batch.tokens":
            digests = tuple(((at.dp or 0) * 10**6 + step * 4 + i + 1) * 4096 + i for i in range(4))
            row = replace(row, site=BATCH, dtype="int64", shape=(4, 16), row_digests=digests)
        if row.site == LAST and row.port.startswith("replica"):
            row = replace(row, digest=tied[row.port])
        rows.append(row)
    return tuple(rows)


_OTHER_DIGEST: dict[str, Callable[[Reading], bool]] = {
    "drift": lambda row: row.port == "replica" and row.site.endswith("linear_proj.weight"),
    "gradient": lambda row: row.port.startswith("replica"),
    "tokens": lambda row: row.site == BATCH,
    "stream": lambda row: row.site == "rng.cpu",
}
_OTHER_NUMBER: dict[str, Callable[[Reading], bool]] = {
    "norm": lambda row: row.port == "grad",
    "clip": lambda row: row.site == "clip_coef",
}


def spoiled(row: Reading, faults: Sequence[Fault], rank: int, step: int) -> Reading:
    """A row with what is wrong in it."""
    at = JOB.coords(rank)
    is_norm = row.port in ("grad", "grad_local")
    for what, where, since in faults:
        is_tied = what == "tied" and at.pp == 1 and row.site == LAST and row.port.startswith("replica")
        is_other = (is_tied or rank == where) and step >= since
        if is_other and (is_tied or (what in _OTHER_DIGEST and _OTHER_DIGEST[what](row))):
            row = replace(row, digest=(row.digest or 0) + 1)
        elif is_other and what in _OTHER_NUMBER and _OTHER_NUMBER[what](row):
            row = replace(row, summary=replace(row.summary, sum=row.summary.sum / 2, sumsq=row.summary.sumsq * 1.5))
        elif what == "batch" and step >= since and row.site == BATCH:
            row = next(r for r in healthy_rows(0, step) if r.site == BATCH)
        is_bad = {
            "nan before": is_norm and row.port == "grad_local" and rank == where and step == since,
            "nan": is_norm and (step >= since or (row.port == "grad_local" and rank == where and step == since - 1)),
            "overflow": is_norm and step in (0, since) and at.pp == JOB.coords(where).pp,
        }
        if is_bad.get(what, False):
            row = replace(row, summary=replace(row.summary, sumsq=0.0, n_nan=1))
    return row


def record(faults: Sequence[Fault], rank: int, step: int) -> StepRecord:
    at = JOB.coords(rank)
    loss = 3.0 + 0.1 * math.sin(step + 7 * (at.dp or 0)) if at.pp == JOB.pp - 1 else None
    found = StepRecord(step=step, n_microbatches=1, loss=loss, grad_norm=1.0, lr=1e-3, loss_scale=1024.0, step_ms=9.0)
    for what, where, since in faults:
        mine = rank == where and step >= since
        if what == "rate" and mine:
            found = replace(found, lr=2e-3)
        if what == "scale" and mine:
            found = replace(found, loss_scale=512.0)
        if (what == "skip" and rank == where and step == since) or (what == "overflow" and step in (0, since)):
            found = replace(found, skipped=True, n_bad_grads=3, grad_norm=math.nan)
        if what == "loss" and mine and loss is not None:
            found = replace(found, loss=loss + 0.5)
        if what == "nan" and step >= since:
            found = replace(found, n_bad_grads=9, grad_norm=math.nan, loss=None if loss is None else math.nan)
    return found


def recorded(folder: Path, faults: Sequence[Fault]) -> RecordedRun:
    run = folder / "run"
    start_run(run, ["torchrun", "pretrain_gpt.py"], {"level": "sentinel"}, JOB.ranks, {})
    for rank in range(JOB.ranks):
        assert not write_place(run, JOB.place(rank), Attempt(host="n", pid=1, started="2026-01-01T00:00:00+00:00"))
        writer = Writer(run, rank=rank, warn=pytest.fail)
        for step in range(STEPS):
            rows = [spoiled(row, faults, rank, step) for row in healthy_rows(rank, step)]
            writer.write(rows, record(faults, rank, step))
        writer.close()
    return open_run(run)


def told(findings: Sequence[Finding]) -> list[str]:
    """What is said of them, but of how many they are: `2 of 45`."""
    return [re.sub(r"(\d+) of \d+", r"\1", repr(each)) for each in findings]


def of_all_ranks(run: RecordedRun) -> list[Finding]:
    codes = tuple(code for code, rule in rules_over_ranks(run).rules.items() if rule.check is not None)
    return [found for *_, found in found_by(run, codes, Records.of(run))]


_FAULT = st.tuples(st.sampled_from(FAULTS), st.integers(0, JOB.ranks - 1), st.integers(0, STEPS - 1))


@settings(max_examples=3, deadline=None)
@given(faults=st.lists(_FAULT, max_size=3))
@example([("nan", 5, 10)])
@example([("overflow", 9, 1), ("norm", 3, 12)])
@example([("tied", 0, 8)])
@example([("tokens", 2, 0)])
@example([("batch", 2, 0), ("rate", 6, 5)])
@example([("loss", 9, 2), ("skip", 9, 7)])
def test_they_find_the_same_in_all_ranks(tmp_path_factory: pytest.TempPathFactory, faults: list[Fault]) -> None:
    run = recorded(tmp_path_factory.mktemp("suspects"), faults)

    found = [each for each in found_in(run).findings if each.code.startswith("HC3")]

    assert told(found) == told(of_all_ranks(run))


@pytest.mark.parametrize(
    ("fault", "code", "n"),
    [
        (("drift", 6, 8), "HC301", 4), (("tokens", 6, 0), "HC305", 2), (("rate", 6, 8), "HC306", 5),
        (("nan before", 6, 8), "HC313", 4), (("nan", 6, 8), "HC313", 4),
    ],
)  # fmt: skip
def test_few_ranks_are_looked_at_where_one_is_wrong(tmp_path: Path, fault: Fault, code: str, n: int) -> None:
    run = recorded(tmp_path, [fault])
    sketch = look_at_job(run).sketch

    assert sketch is not None
    assert len(sketch.suspects) == n
    assert fault[1] in sketch.suspects
    assert code in {each.code for each in found_in(run).findings}


def test_nobody_is_where_all_are_alike(tmp_path: Path) -> None:
    sketch = look_at_job(recorded(tmp_path, [("overflow", 0, 3), ("overflow", 15, 3)])).sketch

    assert sketch is not None
    assert sketch.suspects == ()
