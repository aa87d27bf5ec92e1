"""`run --calibrate` in a job of several ranks: what each can do again alone gets a floor, nobody waits for anybody."""

from pathlib import Path

import pytest
from launch import launch

from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("calibration_job.py")
CONFIG = {"level": "modules", "sketch": True, "param_schedule": "every=1", "calibrate": "every=1"}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "with_gradients"), [("ddp", False), ("same", True)])
def test_ranks_of_ddp_get_floors_of_what_is_their_own(tmp_path, how, with_gradients):
    watched = launch(JOB, how, out=tmp_path / "run", config=CONFIG)
    plain = launch(JOB, how)

    assert sorted(watched.stdout.split()) == sorted(plain.stdout.split())
    rows = [r for r in open_run(tmp_path / "run").readings() if r.op.startswith("calibrate[")]
    phases = {(r.step, r.phase) for r in rows}
    assert {(step, phase) for step in range(3) for phase in ("forward", "backward", "loss")} <= phases
    assert ((0, "grad") in phases) is with_gradients
    assert ("get no noise floor" in watched.stderr) is not with_gradients
    assert "switched off" not in watched.stderr


def test_a_sharded_model_says_why_it_has_none(tmp_path):
    watched = launch(JOB, "fsdp", out=tmp_path / "run", config=CONFIG)
    plain = launch(JOB, "fsdp")

    assert sorted(watched.stdout.split()) == sorted(plain.stdout.split())
    assert not any(r.op.startswith("calibrate[") for r in open_run(tmp_path / "run").readings())
    assert "no noise floor was measured at step 0: the parameters are sharded over the ranks (FSDP)" in watched.stderr
    assert "switched off" not in watched.stderr
