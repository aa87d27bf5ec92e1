"""What is trained later than the rest is a copy on each rank too, where it began equal and has one gradient for all."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

JOB = Path(__file__).with_name("late_job.py")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "found"), [("kept", [("HC301", 6, "error")]), ("sent", [])])
def test_copies_that_are_trained_later(way: str, found: list[tuple[str, int, str]], tmp_path: Path) -> None:
    ended = launch(JOB, way, n=2, out=tmp_path / "run", config={"replicas": "every=2"})

    assert [(f["code"], f["step"], f["severity"]) for f in ended.alarms] == found, ended.stderr
    if found:
        assert "though all ranks have the same gradient" in ended.alarms[0]["why"][0]
