"""The ranks of a job laid out: where and when it began, on the screen and on the page."""

from __future__ import annotations

import gzip
import math
import re

import pytest
from report_fakes import FINDINGS, OVERFLOW, FakeRecording, Job, planted

from hypocenter.nouns import Coords, Diagnosis, Finding, Place, Run, StepRecord, replace
from hypocenter.report.formats import html, terminal
from hypocenter.report.page.ranks import ranks_of
from hypocenter.report.rank_grid import MOST_CELLS, details, rank_grid, ranks_in_words
from hypocenter.report.rank_state import RankState
from hypocenter.report.rank_states import rank_states
from hypocenter.report.rank_table import drawn, grid_of_findings, in_words, rank_lines
from hypocenter.report.screen import Screen


def job(tp=1, dp=1, pp=1, *, bad=None, lost=(), has_layout=True, n_steps=3) -> Job:
    """`bad`: first bad step by rank. Rank order: tp fastest, then dp, then pp."""
    n, bad = tp * dp * pp, bad or {}
    alive = [rank for rank in range(n) if rank not in lost]
    places = {
        rank: Place(
            rank=rank, host=f"node{rank // 8}", device=f"cuda:{rank % 8}",
            coords=Coords(tp=rank % tp, dp=rank // tp % dp, pp=rank // tp // dp) if has_layout else Coords(),
        )
        for rank in alive
    }  # fmt: skip
    records = [
        (rank, StepRecord(step=step, loss=math.nan if step >= bad.get(rank, n_steps) else 1.0))
        for rank in alive
        for step in range(n_steps)
    ]
    return Job(run=Run(format=1, name="job", world_size=n), ranks=alive, places=places, records=records)


def blaming(*ranks: int) -> Diagnosis:
    found = tuple(replace(OVERFLOW, rank=rank, step=1) for rank in ranks)
    return replace(FINDINGS, findings=found)


def states_of(recorded: Job, diagnosis: Diagnosis) -> tuple[RankState, ...]:
    return rank_states(recorded, diagnosis)


def text_of(recorded: Job, diagnosis: Diagnosis, width=100) -> list[str]:
    grid = grid_of_findings(recorded, diagnosis)
    return [] if grid is None else terminal.to_text(drawn(grid, width), Screen()).splitlines()


def test_ranks_stand_by_pipeline_stage_data_and_tensor_parallel_place():
    recorded = job(tp=2, dp=2, pp=2, bad={5: 1, 4: 2}, lost=(7,))
    recorded.places[6] = replace(recorded.places[6], groups={"tp": (6, 7), "dp": (5, 7), "pp": (3, 7)})

    lines = text_of(recorded, blaming(5))

    assert "it began at rank 5 (tp 1, pp 1, dp 0)" in lines[0]
    assert [line.split() for line in lines[1:-1]] == [
        ["pp", "0", "tp", "0", "tp", "1"],
        ["dp", "0", ".", "."],
        ["dp", "1", ".", "."],
        ["pp", "1", "tp", "0", "tp", "1"],
        ["dp", "0", "2", ">1"],
        ["dp", "1", ".", "lost"],
    ]


def test_a_rank_whose_place_nobody_tells_stands_apart():
    lines = text_of(job(tp=2, dp=2, lost=(3,)), blaming(0))

    assert [line.split() for line in lines[-3:-1]] == [["place", "unknown"], ["rank", "3", "lost"]]


def test_without_a_layout_ranks_stand_by_host():
    lines = text_of(job(dp=12, has_layout=False, bad={9: 1}), blaming(9))

    assert lines[1].split()[:3] == ["node0,", "ranks", "0-7"]
    assert lines[2].split() == ["node1,", "ranks", "8-11", ".", ">1", ".", "."]


def test_data_parallel_alone_takes_several_ranks_to_a_row():
    lines = text_of(job(dp=10, bad={2: 1}), blaming(2, 9))

    assert [line.split()[:2] for line in lines[1:3]] == [["dp", "0-7"], ["dp", "8-9"]]
    assert lines[2].split()[2:] == [".", "!1"]  # an error makes a rank bad at its step


def test_stages_alone_stand_side_by_side():
    lines = text_of(job(pp=4, bad={2: 1}), blaming(2))

    assert lines[1].split() == ["pp", "0-3", ".", ".", ">1", "."]


SAME_BATCHES = Finding(
    code="HC305", kind="data", severity="warning", title="the same batches", step=0, rank=0, cause="data-mismatch"
)
LOST = Finding(code="HC321", kind="environment", severity="error", title="lost", step=2, rank=1, cause="rank-lost")
DRIFT = Finding(code="HC301", kind="desync", severity="error", title="drift", step=1, rank=3)
RAISED = Finding(code="HC501", kind="crash", severity="error", title="raised", step=2, rank=3, cause="program-error")
NAN = replace(OVERFLOW, rank=2, step=1)
ALL_DIFFER = replace(DRIFT, rank=0, ranks=(0, 1, 2, 3))


@pytest.mark.parametrize(
    ("findings", "began", "marks"),
    [
        ((SAME_BATCHES, LOST), "it began at rank 1", ["!.", ">lost", ".", "."]),
        ((DRIFT, LOST), "it began at rank 1", [".", ">lost", ".", "!1"]),
        ((SAME_BATCHES, NAN, LOST), "it began at rank 2", ["!.", "lost", ">1", "."]),
        ((SAME_BATCHES, NAN), "it began at rank 2", ["!.", ".", ">1", "."]),
        ((SAME_BATCHES, RAISED, LOST), "it began at rank 3", ["!.", "lost", ".", ">2"]),
        ((ALL_DIFFER,), None, ["!."] * 4),
        ((SAME_BATCHES,), None, ["!.", ".", ".", "."]),
        ((replace(SAME_BATCHES, rank=1), replace(DRIFT, severity="note")), None, [".", "!.", ".", "."]),
    ],
    ids=["killed", "killed after drift", "killed after NaN", "NaN", "an exception", "all differ", "warning", "note"],
)
def test_it_began_where_the_finding_says_that_explains_the_end(findings, began, marks):
    recorded, diagnosis = job(dp=4), replace(FINDINGS, findings=findings)

    about, cells, *_ = text_of(recorded, diagnosis)

    assert ("it began" in about) == (began is not None)
    assert began is None or began in about
    assert cells.split()[2:] == marks


@pytest.mark.parametrize(
    ("recorded", "diagnosis"),
    [
        (job(dp=1), blaming(0)),  # one rank
        (job(dp=4), Diagnosis()),  # nothing found
        (job(dp=65), blaming(0)),  # too many for a screen
        (FakeRecording(), FINDINGS),  # one rank of eight was recorded
    ],
)
def test_the_screen_shows_no_grid_where_it_says_nothing(recorded, diagnosis):
    assert grid_of_findings(recorded, diagnosis) is None


def test_a_screen_too_narrow_gets_none():
    assert text_of(job(tp=8, dp=2), blaming(1), width=30) == []


@pytest.mark.parametrize(
    ("layout", "merged"),
    [
        ({"tp": 8, "dp": 16, "pp": 4}, "each cell is all ranks along tp"),
        ({"tp": 8, "dp": 64, "pp": 2}, "each cell is all ranks along tp and dp"),
        ({"dp": 1024, "has_layout": False}, "each cell is all ranks of one host"),
    ],
)
def test_a_large_job_shares_cells_and_says_so(layout, merged):
    recorded = job(**layout, bad={300: 1}, n_steps=2)
    diagnosis = blaming(300)

    grid = rank_grid(states_of(recorded, diagnosis), diagnosis)

    assert grid is not None
    assert grid.n_cells <= MOST_CELLS
    assert grid.remarks[0] == merged
    cells = [c for block in grid.blocks for _, cells in block.rows for c in cells if c is not None]
    (origin,) = [c for c in cells if c.mark == "origin"]
    assert 300 in [s.rank for s in origin.states]
    assert any("first rank 300 at step 1" in line for line in details(origin))
    shown = sum(len(c.states) for c in cells)
    assert shown == len(recorded.ranks) or f"{len(recorded.ranks) - shown} ranks not shown" in grid.remarks[-1]


def test_hosts_left_out_are_those_that_say_least():
    recorded = job(dp=1024, has_layout=False, bad={1000: 1}, n_steps=2)
    diagnosis = blaming(1000)

    grid = rank_grid(states_of(recorded, diagnosis), diagnosis)

    assert grid is not None
    names = [c.name for block in grid.blocks for _, cells in block.rows for c in cells if c is not None]
    assert "node125" in names
    assert len(names) == MOST_CELLS


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 1], "ranks 0, 1"), ([0, 1, 2, 3, 7], "ranks 0-3, 7"), ([5, 4, 3], "ranks 3-5")],
)
def test_ranks_in_words(ranks, words):
    assert ranks_in_words(ranks) == words


def test_every_rank_is_a_line_of_the_table():
    recorded = job(tp=2, dp=2, bad={2: 1}, lost=(3,))
    diagnosis = blaming(2)

    lines = rank_lines(states_of(recorded, diagnosis), diagnosis)

    assert [(line["rank"], line["first_bad_step"], line["mark"]) for line in lines] == [
        (0, None, "healthy"), (1, None, "healthy"), (2, 1, "origin"), (3, None, "lost"),
    ]  # fmt: skip
    text = list(in_words(lines))
    assert text[3].split() == [
        "2",
        "tp",
        "0,",
        "pp",
        "0,",
        "dp",
        "1",
        "node0",
        "cuda:2",
        "1",
        "2",
        *["it", "began", "here"],
    ]


def test_a_lost_rank_at_which_it_began_is_both_in_the_table():
    recorded, diagnosis = job(dp=2), replace(FINDINGS, findings=(LOST,))

    lines = rank_lines(states_of(recorded, diagnosis), diagnosis)

    assert [(line["mark"], line["lost"]) for line in lines] == [("healthy", False), ("origin", True)]
    assert list(in_words(lines))[2].endswith("  lost, it began here")


def test_the_page_holds_the_grid_as_a_table_with_details_in_each_cell():
    recorded = job(tp=2, dp=2, bad={2: 1}, lost=(3,))

    page = html.render(recorded, blaming(2))

    part = page[page.index('<section id="ranks">') : page.index("</section>", page.index('<section id="ranks">'))]
    assert '<td class="origin" tabindex="0"><span class="who">2</span><b>step 1</b>' in part
    for line in ("rank 2", "tp 0, pp 0, dp 1", "node0 cuda:2", "first bad step 1", "last step 2", "left no recording"):
        assert line in part
    assert "<script" not in part
    assert "style=" not in part


def test_a_page_of_one_rank_has_no_grid():
    assert '<section id="ranks">' not in html.render(FakeRecording(rows=[(3, r) for r in planted(2)]), FINDINGS)


def test_names_of_hosts_cannot_become_markup():
    recorded = job(dp=2)
    recorded.places[1] = replace(recorded.places[1], host="<img src=x onerror=alert(1)>")

    assert "<img" not in html.render(recorded, blaming(1))


def test_the_page_lists_what_tells_something_in_a_large_job():
    recorded = job(tp=8, dp=64, bad=dict.fromkeys(range(200), 1), n_steps=2)
    diagnosis = blaming(100)

    view = ranks_of(states_of(recorded, diagnosis), diagnosis)

    assert view is not None
    assert view.title == "64 of 512 ranks: 200 named, bad, lost, behind or away"
    assert view.lines[0].rank == 100


def test_the_page_of_4096_ranks_stays_small():
    recorded = job(tp=8, dp=64, pp=8, bad=dict.fromkeys(range(4096), 1), n_steps=2)

    page = html.render(recorded, blaming(9))

    assert len(page) < 250_000


def test_every_rank_of_a_large_job_has_a_square_where_it_stands():
    recorded = job(tp=8, dp=160, pp=8, bad={1000: 2}, lost=(77,))
    recorded.places[1] = replace(recorded.places[1], groups={"tp": (*range(72, 80),), "dp": (*range(5, 1280, 8),)})
    recorded.places[3] = replace(recorded.places[3], groups={"pp": (*range(77, 10240, 1280),)})
    view = ranks_of(states_of(recorded, blaming(1000)), blaming(1000))

    assert view is not None
    assert view.map is not None
    svg = str(view.map)
    sides = [int(wide) for wide in re.findall(r"h(\d+)v7h-", svg)]
    assert sum(sides) // 7 == 10240 + 2  # squares side by side are one rectangle; two have a tip as well
    assert svg.count("<title>") == 2
    assert "rank 1000, " in svg
    assert "left no recording" in svg
    assert [f">pp {n}<" in svg for n in (0, 7, 8)] == [True, True, False]
    assert len(gzip.compress(svg.encode(), 4)) < 8 << 10
    assert [mark for mark, _ in view.marks] == ["origin", "lost", "healthy"]


def test_few_ranks_have_cells_and_no_squares():
    view = ranks_of(states_of(job(dp=MOST_CELLS), FINDINGS), FINDINGS)

    assert view is not None
    assert view.map is None
