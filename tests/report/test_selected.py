"""report/selected.py: what `show` reads of many ranks, against what it would have read of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from hypocenter.errors import UnknownNameError
from hypocenter.nouns import Attempt, Coords, Place, Reading, StepRecord, Summary
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer
from hypocenter.report.selected import first_values, logical, selected
from hypocenter.report.selection import Selection, select
from hypocenter.report.sites import site_lines


@pytest.fixture
def job(tmp_path: Path) -> RecordedRun:
    """dp 2 x pp 2: each stage has one weight, a copy on each dp rank, and the digest of it."""
    start_run(tmp_path, ["x"], {}, 4, {})
    for rank in range(4):
        dp, pp = rank % 2, rank // 2
        groups = {"dp": (2 * pp, 2 * pp + 1), "pp": (dp, dp + 2)}
        place = Place(rank=rank, world_size=4, coords=Coords(dp=dp, pp=pp), groups=groups)
        assert not write_place(tmp_path, place, Attempt())
        writer = Writer(tmp_path, rank=rank, warn=pytest.fail)
        for step in range(3):
            bad = Summary(n=8, n_nan=3, n_hist=8, absmax=2.0, sumsq=5.0)
            fields = {"step": step, "microbatch": 0, "site": f"layers.{1 - pp}.weight", "dtype": "float32"}
            rows = [
                Reading(**fields, phase="param", port="value", order=4, placement="dp=R", summary=bad),
                Reading(**fields, phase="param", port="replica", order=5, placement="dp=R", digest=1),
                Reading(**fields, phase="grad", port="grad_local", order=3, summary=bad),
            ]
            writer.write(rows, StepRecord(step=step))
        writer.close()
    return open_run(tmp_path)


def test_copies_count_once_and_stages_come_in_their_order(job: RecordedRun) -> None:
    found = logical(job, Selection())

    assert [(line.site, line.port, line.n_steps, line.chips) for line in site_lines(found.table)] == [
        ("layers.1.weight", "grad_local", 3, ("NaN ×18",)),  # before the reduction every rank has its own
        ("layers.0.weight", "grad_local", 3, ("NaN ×18",)),
        ("layers.1.weight", "value", 3, ("NaN ×9",)),
        ("layers.0.weight", "value", 3, ("NaN ×9",)),
    ]
    assert found.n_left_out == 12  # the digests


def test_what_is_named_is_given_also_a_digest(job: RecordedRun) -> None:
    found = logical(job, Selection(site="layers.0.weight"))

    lines = {line.port: line.magnitude for line in site_lines(found.table)}
    assert lines == {"grad_local": "2", "value": "2", "replica": "digest"}
    assert found.n_left_out == 0


def test_one_rank_is_given_as_it_is(job: RecordedRun) -> None:
    assert logical(job, Selection(rank=2, is_whole=True)).table.equals(job.table(2))
    assert logical(job, Selection(rank=2)).table.num_rows == 6


@pytest.mark.parametrize("most", [1, 7, 1000])
def test_the_first_values_are_those_of_all_in_order(job: RecordedRun, most: int) -> None:
    wanted = Selection(site="layers.0*")

    found = first_values(job, wanted, most)

    keys = [(name, "ascending") for name in ("step", "microbatch", "rank", "order")]
    everything = select(job.table(), wanted).sort_by(keys)
    assert found.n_rows == everything.num_rows == 18
    assert found.table.to_pylist() == everything.slice(0, most).to_pylist()


def test_phases_steps_and_ranks_are_filtered(job: RecordedRun) -> None:
    found = selected(job, Selection(step=1, rank=3), phases=("grad",))

    assert found.select(["step", "rank", "phase"]).to_pylist() == [{"step": 1, "rank": 3, "phase": "grad"}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (Selection(step=9), "the recording has steps 0 to 2"),
        (Selection(rank=7), "the recording has ranks 0 to 3"),
        (Selection(site="nowhere"), "2 sites were recorded here"),
    ],
)
def test_what_does_not_occur_is_named_with_what_does(job: RecordedRun, wanted: Selection, why: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        logical(job, wanted)

    assert caught.value.why == why
