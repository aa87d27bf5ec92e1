"""Steps whose loss reads what other ranks sent are done again with what was received then."""

from __future__ import annotations

from pathlib import Path

from launch import launch

JOB = Path(__file__).with_name("gather_job.py")


def test_contrastive_training_repeats_itself(tmp_path: Path) -> None:
    watched = launch(JOB, n=2, out=tmp_path / "run", config={"audit": "every=1"})

    assert [(f["code"], f["title"]) for f in watched.diagnosis["findings"]] == [], watched.stderr
    assert "could not be audited" not in watched.stderr
    assert watched.stdout == launch(JOB, n=2).stdout
