"""torchtitan's own trainer on its llama3 debug model: FSDP2 in bf16, selective checkpointing, a loss in chunks.

It has no loss scaler, and the model no dropout. Its pipeline does not run on torch 2.13: it calls
`schedule.step(arg_mbs=...)`, which is of a nightly one.
"""

import os
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

PYTHON = os.environ.get("TITAN_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON and find_spec("torchtitan") is None, reason="TITAN_PYTHON names no Python with it"),
]

JOB = "torchtitan_job.py"
LATE = ("--steps", "11", "--at", "9")  # by then the ranks meet at each step
AGAIN = {"sdc_check": "every=1", "audit": "every=1"}


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Where the job finds torchtitan."""
    if PYTHON:
        (site,) = Path(PYTHON).parents[1].glob("lib/python*/site-packages")
        monkeypatch.setenv("TITAN_SITE", str(site))


@pytest.mark.night
def test_healthy_steps_that_are_done_again_are_silent_and_change_no_bit(job):
    args = (JOB, "--steps", "5", "--accumulate", "2")
    plain, seen = job(*args, record=False), job(*args, **AGAIN)

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms) == ("healthy", [])
    assert len(seen.run.step_records()) == 10  # the optimizer of the container is no second one
    recorded = {record.step: record.loss for rank, record in seen.run.step_records() if rank == 0}
    for step, rows in groupby(seen.run.readings(rank=0, phase="loss"), lambda row: row.step):
        losses = [row.summary.sum for row in rows]  # two micro-batches: two chunks and their sum, each
        assert recorded[step] == pytest.approx((losses[2] + losses[5]) / 2, rel=1e-6)
    assert "could not be checked by doing it again (sdc_check): the parameters are sharded" in seen.said
    for rank in (0, 1):
        assert "grad_made" in {row.port for row in seen.run.readings(rank=rank, phase="grad")}


def test_a_division_by_zero_after_a_layer_is_named(job):
    (found,) = job(JOB, "--plant", "activation", *LATE, dies=True).alarms

    assert (found["step"], found["rank"], found["site"]) == (9, 1, "layers.1.feed_forward")
    assert (found["op"], found["cause"], found["confidence"]) == ("aten.div.Tensor", "division-by-zero", "proven")
    assert found["source"]["text"] == "return output / torch.zeros_like(output)"
    assert any("died of RuntimeError" in line for line in found["then"])  # torchtitan's own check of the loss


def test_a_nan_in_one_gradient_is_named(job):
    ran = job(JOB, "--plant", "gradient", *LATE, dies=True)

    (found,) = ran.alarms
    assert (found["step"], found["rank"], found["op"]) == (9, 1, "aten.copy_.default")
    assert found["source"]["text"] == 'factor.view(-1)[3] = float("nan")'
    assert "cannot be replayed" not in ran.said
