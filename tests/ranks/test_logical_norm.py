"""diagnose/logical.py on real runs: the norm of the job from local ones is what torch's clip_grad_norm_ says."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

from hypocenter.compare.curves.catalogue import read_curve
from hypocenter.diagnose.logical_norm import grad_norms
from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("norm_job.py")


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "n"), [("ddp", 2), ("fsdp2", 2), ("tp", 2), ("mesh", 4)])
def test_local_norms_come_to_the_norm_of_the_job(tmp_path: Path, mode: str, n: int) -> None:
    ended = launch(JOB, mode, n=n, out=tmp_path / "run", config={"level": "sentinel"})

    assert ended.code == 0, ended.stderr
    said = [float(line.split()[2]) for line in ended.stdout.splitlines() if line.startswith("norm ")]
    recording = open_run(tmp_path / "run")
    found = grad_norms(recording.table(), recording.places)
    assert len(said) == 4
    assert [norm.why_not for norm in found] == [""] * 4
    assert [norm.norm for norm in found] == pytest.approx(said, rel=1e-5)
    curve = read_curve(tmp_path / "run")
    assert curve.problems == ()
    assert curve.series["grad_norm"].values.tolist() == pytest.approx(said, rel=1e-5)
    losses = [float(line.split()[2]) for line in ended.stdout.splitlines() if line.startswith("loss ")]
    assert curve.series["loss"].values.tolist() == pytest.approx(losses, rel=1e-6)
