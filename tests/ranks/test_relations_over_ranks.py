"""Relations are looked at on one rank, where its model can compute alone, and otherwise by all ranks together."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Ended, launch

from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("relations_job.py")
ASKED = {"relations": "every=4"}  # however long it takes, on however slow a machine


def plain(kind: str, how: str) -> list[str]:
    return sorted(launch(JOB, kind, how).stdout.split("\n"))


def watched(kind: str, how: str, out: Path) -> Ended:
    """It trains as it does alone: all losses of all ranks are the same, to the bit."""
    ended = launch(JOB, kind, how, out=out, config=ASKED)
    assert sorted(ended.stdout.split("\n")) == plain(kind, how), ended.stderr
    assert ended.code == 0
    return ended


def words(out: Path) -> str:
    """What was asked, or was not, and why."""
    rows = [row for row in open_run(out).readings() if row.site == "relations"]
    return "\n".join(" ".join(row.names) for row in rows)


def found(ended: Ended) -> list[tuple[str, int]]:
    return [(f["code"], f["rank"]) for f in ended.alarms]


def test_samples_that_mix_under_ddp_are_found_on_the_first_rank(tmp_path: Path) -> None:
    ended = launch(JOB, "ddp", "wrong", out=tmp_path / "run")

    told = [f for f in ended.alarms if f["code"] == "HC241"]
    assert [(f["step"], f["rank"], f["severity"]) for f in told] == [(1, 0, "warning")], ended.stderr
    assert sorted(ended.stdout.split("\n")) == plain("ddp", "wrong")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("tp", "HC242"),
        pytest.param("synced", "HC241", marks=pytest.mark.slow),
        pytest.param("fsdp", "HC242", marks=pytest.mark.slow),
        pytest.param("fsdp1", "HC242", marks=pytest.mark.slow),
        pytest.param("cp", "HC242", marks=pytest.mark.slow),
    ],
)
def test_what_must_not_matter_and_does(kind: str, code: str, tmp_path: Path) -> None:
    assert found(watched(kind, "wrong", tmp_path / "run")) == [(code, 0)]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("cp", ("samples", "future")),  # a sample lies on both ranks
        ("fsdp", ("samples", "future")),
        pytest.param("tp", ("samples", "future", "beginning"), marks=pytest.mark.slow),
        pytest.param("fsdp1", ("samples", "future"), marks=pytest.mark.slow),
        pytest.param("synced", ("samples",), marks=pytest.mark.slow),
        pytest.param("clip", ("samples",), marks=pytest.mark.slow),
        pytest.param("looped", ("samples",), marks=pytest.mark.slow),
    ],
)
def test_a_right_model_is_asked_and_holds(kind: str, held: tuple[str, ...], tmp_path: Path) -> None:
    assert found(watched(kind, "right", tmp_path / "run")) == []

    said = words(tmp_path / "run")
    assert all(f"{each}: holds" in said for each in held), said


@pytest.mark.parametrize("kind", ["looped", pytest.param("clip", marks=pytest.mark.slow)])
def test_a_loss_that_depends_on_the_rank_that_computes_it(kind: str, tmp_path: Path) -> None:
    assert found(watched(kind, "wrong", tmp_path / "run")) == [("HC252", 0)]


@pytest.mark.slow
def test_who_does_not_come_through_a_forward_holds_nobody_up(tmp_path: Path) -> None:
    assert found(watched("refuses", "right", tmp_path / "run")) == []

    assert "another rank did not come" in words(tmp_path / "run")
