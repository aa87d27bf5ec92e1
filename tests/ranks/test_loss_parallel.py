"""A loss that is a DTensor: its value is read where all ranks have it, and nobody is asked for the other parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("loss_parallel_job.py")


@pytest.mark.parametrize("kind", ["whole", "parts"])
def test_its_steps_are_recorded(kind: str, tmp_path: Path) -> None:
    ended = launch(JOB, kind, out=tmp_path / "run")

    assert ended.code == 0, ended.stderr
    assert "switched off" not in ended.stderr
    assert ended.alarms == []
    steps = open_run(tmp_path / "run").step_records()
    assert [(rank, record.step) for rank, record in steps] == [(rank, step) for rank in (0, 1) for step in range(12)]
    assert all((record.loss is not None) == (kind == "whole") for _, record in steps)
    assert all(record.grad_norm for _, record in steps)


def test_where_it_breaks_is_found(tmp_path: Path) -> None:
    ended = launch(JOB, "whole", "nan", out=tmp_path / "run")

    assert ended.alarms
    assert {finding["step"] for finding in ended.alarms if finding["severity"] == "error"} == {6}
