"""The step where two runs part, read again by itself; and the curves of runs however short."""

from __future__ import annotations

import pytest
from little_gpt import record

from hypocenter.compare.comparison import stage_of
from hypocenter.compare.curves.of_runs import curves_of_runs
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import first_step_of
from hypocenter.record.reader import open_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    planted = {"good": {}, "eps": {"eps": 1e-2}, "lr": {"lr": 2e-3}}
    return {name: open_run(record(folder / name, steps=3, **what)) for name, what in planted.items()}


@pytest.mark.night
def test_before_the_culprit_all_rows_of_its_step_agree(runs):
    found = compare_runs(runs["good"], runs["eps"])

    scene = first_step_of(found, runs["good"], runs["eps"])
    rows = sorted(scene.rows, key=lambda row: (stage_of(row.pair.baseline[0]), row.order))
    at = [row.pair for row in rows].index(found.first.row.pair)

    assert scene.step == 0
    assert {row.step for row in rows} == {0}
    assert all(row.verdict != "differs" for row in rows[:at])
    assert rows[at].verdict == "differs"
    assert rows[at].distance == found.first.row.distance
    assert rows[at].shapes == found.first.row.shapes
    assert len(scene.cards[0]) >= len(found.matching.pairs)


def test_what_the_optimizer_did_is_seen_at_the_step_after(runs):
    found = compare_runs(runs["good"], runs["lr"])

    scene = first_step_of(found, runs["good"], runs["lr"])

    assert found.sentence.startswith("diverged at step 0, optimizer: learning rate 0.001 against 0.002, first of ")
    assert scene.step == found.first.row.step
    assert found.first.row.pair in {row.pair for row in scene.rows}


def test_runs_that_do_not_part_have_no_scene(runs):
    found = compare_runs(runs["good"], runs["good"])

    scene = first_step_of(found, runs["good"], runs["good"])

    assert (scene.step, scene.rows) == (None, ())
    assert scene.cards[0] == scene.cards[1]


def test_short_runs_have_curves_without_a_verdict(runs):
    curves = curves_of_runs(runs["good"].directory, runs["eps"].directory)

    assert [one.name for one in curves] == ["loss", "grad norm"]
    track = curves[0].found.track
    assert track.steps == (0, 1, 2)
    assert track.difference == tuple(b - a for a, b in zip(track.baseline, track.candidate, strict=True))
    assert "too few to tell what is noise" in curves[0].found.sentence


def test_no_curves_where_there_is_nothing_to_read(tmp_path):
    assert curves_of_runs(tmp_path, tmp_path) == ()
