"""report/few_rows.py: of many ranks a page keeps the largest, and draws what it would have drawn from all rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hypocenter.nouns import Attempt, Coords, Finding, Place, Reading, StepRecord, Summary
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer
from hypocenter.report import few_rows as few
from hypocenter.report.page.diary import diary_of
from hypocenter.report.page.grid import grid_of
from hypocenter.report.page.upstream import upstream_of


def reading(rank: int, step: int, site: str, order: int, *, is_norm: bool = False) -> Reading:
    size = 1.0 + (rank * 7 + step * 3 + order) % 11
    values = Summary(n=8, sumsq=size * size)
    if not is_norm:
        values = Summary(n=8, n_hist=8, n_nan=int(rank == 2 and step == 3), absmax=size, absmin=0.1, min=-size, max=1.0)
    phase, port = ("grad", "grad") if is_norm else ("forward", "out[0]")
    return Reading(step=step, microbatch=0, phase=phase, site=site, port=port, order=order, dtype="float32",
                   shape=(8,), summary=values)  # fmt: skip


def scale(step: int) -> Reading:
    return Reading(step=step, microbatch=0, phase="scaler", site="loss_scale", port="value", order=90, dtype="float32",
                   module="GradScaler", summary=Summary(n=1, n_hist=1, sum=1024.0, absmax=1024.0))  # fmt: skip


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    """Six ranks in three pipeline stages; every row counts as too many."""
    monkeypatch.setattr(few, "MOST_ROWS", 0)
    monkeypatch.setattr(few, "_RANKS_AT_ONCE", 2)
    start_run(tmp_path, ["x"], {}, 6, {})
    for rank in range(6):
        assert not write_place(tmp_path, Place(rank=rank, coords=Coords(pp=rank // 2)), Attempt())
        writer = Writer(tmp_path, rank=rank, warn=pytest.fail)
        for step in range(4):
            site = f"layers.{rank // 2}"
            rows = [reading(rank, step, site, 0), reading(rank, step, f"{site}.weight", 1, is_norm=True)]
            writer.write([*rows, scale(step)], StepRecord(step=step, loss=1.0, loss_scale=1024.0))
        writer.close()
    return open_run(tmp_path)


def test_the_grid_is_the_one_of_all_rows(job: RecordedRun) -> None:
    expected = grid_of(job.table())

    grid = grid_of(few.few_rows(job, None))

    assert sorted(map(repr, grid.rows)) == sorted(map(repr, expected.rows))
    places = [expected.rows.index(row) for row in grid.rows]
    np.testing.assert_array_equal(grid.absmax, expected.absmax[places])
    assert np.isinf(grid.absmax).sum() == 1


def test_later_stages_come_later(job: RecordedRun) -> None:
    grid = grid_of(few.few_rows(job, None))

    assert [row.site for row in grid.rows] == [f"layers.{i}{end}" for end in ("", ".weight") for i in range(3)]


def test_one_rank_is_there_in_detail_and_the_diary_of_the_lowest(job: RecordedRun) -> None:
    finding = Finding(code="HC101", kind="nonfinite", severity="error", title="x", step=3, rank=2, site="layers.1")

    table = few.few_rows(job, finding)

    upstream, expected = upstream_of(finding, table), upstream_of(finding, job.table())
    assert upstream is not None
    assert upstream == expected
    diary = diary_of(table, job.step_records())
    assert diary == diary_of(job.table(), job.step_records())
    assert table.num_rows == 24 + 8 + 12


def test_a_small_recording_is_given_as_it_is(job: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few, "MOST_ROWS", 1000)

    assert few.few_rows(job, None).equals(job.table())
