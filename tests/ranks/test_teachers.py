"""A network that every rank learns from, that no optimizer holds, and that one rank alone moves."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

JOB = Path(__file__).with_name("teacher_job.py")


def test_who_learns_from_one_that_stands_still_is_told(tmp_path: Path) -> None:
    ended = launch(JOB, "one-rank", out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    (finding,) = ended.alarms
    assert (finding["code"], finding["severity"], finding["rank"], finding["step"]) == ("HC301", "warning", 1, 1)
    assert finding["site"].startswith("teacher.")
    assert "stands still on rank 1, and moves on rank 0" in finding["title"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["everywhere", "evaluated", "sent", "drawn", "still"])
def test_others_are_not(case: str, tmp_path: Path) -> None:
    ended = launch(JOB, case, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    assert ended.alarms == []
