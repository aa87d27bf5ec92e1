"""Replicas on real ranks: each fault of replica_job.py is named, and without one nobody. More are in the gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from by_day import first_of_each
from launch import Ended, launch

JOB = Path(__file__).with_name("replica_job.py")


def said(ended: Ended) -> list[tuple[Any, ...]]:
    assert ended.code == 0, ended.stderr
    return [(f["code"], f["site"], f["cause"], f["step"]) for f in ended.alarms]


@pytest.mark.parametrize(
    ("fault", "n", "code", "rank", "step"),
    first_of_each(
        [
            ("copy", 2, "HC301", None, 0),
            ("other-start", 2, "HC301", None, 0),
            ("rate", 2, "HC306", None, 0),
            ("same-data", 2, "HC305", None, 0),
            # not on the schedule of replicas: seen at 13, and dated by the law of gradients
            ("flip", 3, "HC301", 2, 12),
            ("write", 3, "HC301", 2, 5),
            ("clip", 3, "HC303", 2, 10),
        ],
        lambda case: case[2],
    ),
)
def test_other_faults(fault: str, n: int, code: str, rank: int | None, step: int, tmp_path: Path) -> None:
    ended = launch(JOB, fault, n=n, out=tmp_path / "run")

    (finding,) = ended.alarms
    assert (finding["code"], finding["step"]) == (code, step)
    assert rank is None or finding["rank"] == rank


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["healthy", "rounding"])
def test_no_fault(fault: str, tmp_path: Path) -> None:
    assert said(launch(JOB, fault, out=tmp_path / "run")) == []


def test_losses_are_the_same_to_the_last_digit(tmp_path: Path) -> None:
    config = {"replicas": "every=1"}

    watched, plain = launch(JOB, "healthy", out=tmp_path / "run", config=config), launch(JOB, "healthy")

    assert watched.stdout == plain.stdout
    assert "step 13" in plain.stdout


def test_one_process_writes_digests_of_its_data_alone(tmp_path: Path) -> None:
    from hypocenter.record.reader import open_run

    launch(JOB, "healthy", n=1, out=tmp_path / "run")

    rows = open_run(tmp_path / "run").table().to_pylist()
    assert {row["phase"] for row in rows if row["digest"] is not None} == {"data"}
