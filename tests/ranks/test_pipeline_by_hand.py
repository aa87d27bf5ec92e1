"""What goes wrong between the stages of a pipeline is named: on real ranks."""

from __future__ import annotations

from pathlib import Path

from launch import launch

JOB = Path(__file__).with_name("pipeline_job.py")


def test_an_activation_that_is_used_twice_is_named(tmp_path: Path) -> None:
    stale, healthy = (launch(JOB, fault, out=tmp_path / fault) for fault in ("stale", "none"))

    assert (stale.code, healthy.code) == (0, 0), stale.stderr + healthy.stderr
    (found,) = [f for f in stale.alarms if f["code"] == "HC338"]
    assert (found["rank"], found["microbatch"]) == (1, 1)
    assert healthy.alarms == []


def test_ranks_in_different_collectives_are_told(tmp_path: Path) -> None:
    ended = launch(JOB, "other-call", out=tmp_path / "run")

    assert ended.code != 0
    (found,) = [f for f in ended.diagnosis["findings"] if f["code"] == "HC323"]
    assert found["step"] == 3
    assert "all_reduce" in found["title"]
    assert "broadcast" in found["title"]
