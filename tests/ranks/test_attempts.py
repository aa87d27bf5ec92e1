"""A job that is started again makes another attempt in the same recording."""

import subprocess
import sys
from pathlib import Path

import pytest
from launch import diagnosed, environment, launch

from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("attempt_job.py")


def steps(run, rank):
    return run.steps(rank)["step"].to_pylist()


def test_a_later_attempt_takes_over_the_steps_that_it_did_again(tmp_path, monkeypatch):
    out = tmp_path / "run"

    first = launch(JOB, str(tmp_path), "--fail-at", "6", out=out)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    second = launch(JOB, str(tmp_path), out=out)

    assert (first.code, second.code) == (3, 0)
    run = open_run(out)
    for rank in (0, 1):
        assert steps(run, rank) == list(range(9))
        losses = [r.step for r in run.readings(rank=rank, site="loss")]
        assert losses == list(range(9))  # not 4 to 6 twice
        assert [a.number for a in run.places[rank].attempts] == [0, 1]
    assert "attempt 1 began at step 4 (ranks 0, 1 had ended at step 6)" in second.diagnosis["notes"]
    assert not any("processes" in note for note in second.diagnosis["notes"])
    assert second.diagnosis["findings"] == []


@pytest.mark.night
def test_torchrun_restarts_a_job_in_the_same_recording(tmp_path):
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2"]
    job = [*torchrun, "--max-restarts", "1", str(JOB), str(tmp_path), "--fail-at", "6"]
    # torch 2.13 keeps one store over restarts, and gloo then meets the addresses of the ranks before: half of all
    # restarts fail or hang, without Hypocenter too
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    done = subprocess.run(
        [sys.executable, "-m", "hypocenter", "run", "--out", str(tmp_path / "run"), *job],
        env=environment() | own_store, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    run = open_run(tmp_path / "run")
    assert [steps(run, rank) for rank in (0, 1)] == [list(range(9))] * 2
    assert any(note.startswith("attempt 1 began at step 4 (rank") for note in diagnosed(tmp_path / "run")["notes"])
