"""Lanes of ranks: as a picture, and in a real browser over steps and over time."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

from report_fakes import FINDINGS, OVERFLOW
from test_page_in_browser import TWO_FRAMES, browser, opened, pytestmark, sync_api  # noqa: F401
from test_rank_grid import job

from hypocenter.nouns import StepRecord, replace
from hypocenter.report.formats import html
from hypocenter.report.page.lanes import MOST_LANES, MOST_SLICES, lanes_of

FOUND = replace(FINDINGS, findings=(replace(OVERFLOW, step=7, rank=1),))


def records(n_ranks: int, n_steps: int, bad: int = 1) -> list[tuple[int, StepRecord]]:
    """Rank `bad` goes wrong at step 7, and takes twice as long for its steps."""
    return [
        (rank, StepRecord(step=s, loss=math.nan if rank == bad and s >= 7 else 1.0, step_ms=10.0 * (1 + (rank == bad))))
        for rank in range(n_ranks) for s in range(n_steps)
    ]  # fmt: skip


def test_a_lane_says_what_each_of_its_steps_was() -> None:
    lanes = lanes_of(records(2, 10), FOUND)

    assert lanes is not None
    assert [lane["kinds"] for lane in lanes.data["lanes"]] == ["0000000000", "0000000322"]
    assert [sum(lane["ms"]) for lane in lanes.data["lanes"]] == [100.0, 200.0]
    assert [meaning for _, meaning in lanes.legend] == ["a step", "not finite", "a finding"]
    drawn = ElementTree.fromstring(str(lanes.svg))
    assert [shape.get("class") for shape in drawn.iter("rect")] == ["k0", "k0", "k3", "k2"]


def test_a_rank_that_ends_early_has_a_short_lane() -> None:
    lanes = lanes_of([one for one in records(2, 10) if one[0] == 0 or one[1].step < 4], FOUND)

    assert lanes is not None
    wide = [float(shape.get("width") or 0) for shape in ElementTree.fromstring(str(lanes.svg)).iter("rect")]
    assert wide[1] < 0.5 * wide[0]


def test_of_many_ranks_and_steps_the_telling_ones_are_kept() -> None:
    lanes = lanes_of(records(40, MOST_SLICES + 1, bad=35), FOUND)

    assert lanes is not None
    shown = {lane["rank"]: lane for lane in lanes.data["lanes"]}
    assert len(shown) == MOST_LANES
    assert "3" not in shown[0]["kinds"]
    assert "3" in shown[1]["kinds"]
    assert "2" in shown[35]["kinds"]
    assert len(shown[0]["kinds"]) <= MOST_SLICES
    assert "32 of 40 ranks" in lanes.about


def test_one_rank_has_no_lanes() -> None:
    assert lanes_of(records(1, 10), FOUND) is None


def test_lanes_are_zoomed_and_told_over_time(browser: sync_api.Browser, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "report.html"
    path.write_text(html.render(replace(job(dp=2), records=records(2, 10)), FOUND), encoding="utf-8")

    with opened(browser, path) as watched:
        lanes = watched.page.locator("#lane-chart svg")
        lanes.wait_for()
        before = lanes.get_attribute("aria-valuetext")
        watched.page.get_by_label("axis").select_option("time")
        in_time = lanes.get_attribute("aria-valuetext")
        box = lanes.bounding_box()
        assert box is not None
        lanes.hover(position={"x": 80 + 0.72 * (box["width"] - 88), "y": 28})
        tip = watched.page.locator("#lane-chart .tip").inner_text()
        lanes.press("+")
        watched.page.evaluate(TWO_FRAMES)

        assert before == "0 to 10"
        assert in_time == "0 ms to 200 ms"
        assert tip == "rank 1, step 7: 20 ms; a finding"
        assert lanes.get_attribute("aria-valuetext") == "50 ms to 150 ms"
        assert watched.complaints == []
