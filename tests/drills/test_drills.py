"""Each drill once; `python tests/drills/drill.py --runs 10` does them all ten times."""

from __future__ import annotations

import subprocess
import sys

import pytest
from drill import AGREE_S, JOB, LEEWAY_S, USER_TIMEOUT_S, run_drill
from launch import diagnosed, environment, launch

slow = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "raise", pytest.param("stop", marks=slow), pytest.param("leave", marks=slow)])
def test_the_rank_that_was_lost_is_named_and_nobody_hangs(tmp_path, kind):
    drill = run_drill(kind, 0, tmp_path, config={"agree_timeout_s": AGREE_S})

    assert_nobody_hangs(drill)


@pytest.mark.night
@slow
@pytest.mark.parametrize("kind", ["kill", "stop"])
def test_ranks_that_meet_before_each_update_wait_no_longer_than_agreed(tmp_path, kind):
    drill = run_drill(kind, 1, tmp_path, style="inside", config={"agree_timeout_s": AGREE_S})

    assert_nobody_hangs(drill)


def assert_nobody_hangs(drill):
    assert drill.is_named, drill.diagnosis["findings"]
    assert drill.is_readable, (drill.steps, drill.recorded)
    assert drill.n_stuck == 0, drill.exits
    assert drill.to_error_s < (USER_TIMEOUT_S if drill.kind == "stop" else 0) + AGREE_S + LEEWAY_S
    assert drill.wait_s < AGREE_S + LEEWAY_S


@pytest.mark.night
@pytest.mark.parametrize("kind", ["full-disk", pytest.param("slow-disk", marks=slow)])
def test_a_rank_with_a_bad_disk_holds_nobody_up(tmp_path, kind):
    drill = run_drill(kind, 0, tmp_path)

    assert drill.is_named, drill.diagnosis["findings"]
    assert drill.is_readable, (drill.steps, drill.recorded)
    assert {code for code, _ in drill.exits.values()} == {0}


def test_a_recording_that_a_full_disk_cuts_short_is_told(tmp_path):
    act = ("--victim", "1", "--act", "full-disk", "--step", "8", "--where", "data")

    ended = launch(JOB, "--steps", "16", *act, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    assert [(f["code"], f["rank"]) for f in ended.diagnosis["findings"]] == [("HC322", 1)]


@pytest.mark.night
@slow
def test_a_hanging_job_says_who_is_missing_before_and_after_it_is_killed(tmp_path):
    drill = run_drill("scheduler", 0, tmp_path)

    assert drill.is_named, (drill.live["findings"], drill.diagnosis["findings"])
    assert drill.is_readable, (drill.steps, drill.recorded)


@pytest.mark.night
@slow
def test_torchrun_that_ends_the_others_by_sigterm(tmp_path):
    command = [sys.executable, "-m", "hypocenter", "run", "--out", str(tmp_path / "run"), "-m", "torch.distributed.run"]
    job = ["--standalone", "--nproc-per-node", "4", str(JOB), "--victim", "2", "--act", "kill", "--where", "forward"]

    subprocess.run([*command, *job], capture_output=True, timeout=200, env=environment(), check=False)
    lost = [f for f in diagnosed(tmp_path / "run")["findings"] if f["code"] == "HC321"]

    assert [(f["rank"], f["severity"], f["count"]) for f in lost] == [(2, "error", 1)]


def test_a_healthy_twin_accuses_nobody(tmp_path):
    ended = launch(JOB, "--steps", "8", n=4, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    assert [f for f in ended.diagnosis["findings"] if f["code"].startswith("HC32")] == []
    assert ended.diagnosis["status"] == "healthy", ended.diagnosis["findings"]
    assert (tmp_path / "run" / "rank-00001" / "whereabouts").stat().st_size == 4096


def test_the_collective_and_who_never_entered_it_are_told(tmp_path):
    ended = launch(
        JOB, "--style", "plain", "--victim", "1", "--act", "raise", "--where", "data", n=3, out=tmp_path / "run"
    )
    (lost,) = [f for f in ended.diagnosis["findings"] if f["code"] == "HC321"]

    assert (lost["rank"], lost["step"]) == (1, 5)
    assert "rank 1: ValueError: the sample has no label (job.py:" in lost["why"][0]
    assert any(
        "ranks 0, 2 waited" in line and "all_reduce.sum #" in line and "rank 1, which never entered it" in line
        for line in lost["why"]
    )
