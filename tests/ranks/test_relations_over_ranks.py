"""Relations are looked at on one rank, where its model can compute alone; where not, nobody waits for anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("relations_job.py")


def words(out: Path) -> str:
    """What was not asked, and why."""
    rows = [row for row in open_run(out).readings() if row.site == "relations"]
    assert {row.step for row in rows} == {1}, "said once"
    return "\n".join(" ".join(row.names) for row in rows)


def test_samples_that_mix_under_ddp_are_found_on_the_first_rank(tmp_path: Path) -> None:
    watched = launch(JOB, "ddp", n=2, out=tmp_path / "run")

    found = [f for f in watched.alarms if f["code"] == "HC241"]
    assert [(f["step"], f["rank"], f["severity"]) for f in found] == [(1, 0, "warning")], watched.stderr
    assert watched.stdout == launch(JOB, "ddp", n=2).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "why"),
    [("synced", "communicates with other ranks"), ("fsdp", "on several ranks"), ("tp", "on several ranks")],
)
def test_a_model_that_needs_other_ranks_is_not_asked(kind: str, why: str, tmp_path: Path) -> None:
    watched = launch(JOB, kind, n=2, out=tmp_path / "run")

    assert why in words(tmp_path / "run"), watched.stderr
    assert watched.alarms == []
    assert watched.stdout == launch(JOB, kind, n=2).stdout
