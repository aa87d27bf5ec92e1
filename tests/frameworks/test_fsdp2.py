"""FSDP2 as users set it up: bf16, checkpointing, accumulation, CPU offload, resharding to nodes, a loss scaler."""

import pytest

from tests.frameworks.conftest import place_of

pytestmark = pytest.mark.slow

JOB = "fsdp2_job.py"
AGAIN = {"sdc_check": "every=1", "audit": "every=1"}
RANKS = {"accumulated": 2, "offloaded": 2, "nodes": 4, "scaled": 2}
DIVISION = "return x + hidden / torch.full_like(hidden, self.divisor)"
SPOILING = "return grad * ctx.factor, None"


@pytest.mark.parametrize("setup", RANKS)
def test_healthy_steps_that_are_done_again_are_silent_and_change_no_bit(job, setup):
    args = (JOB, "--setup", setup, "--steps", "6")
    plain, seen = job(*args, record=False, n=RANKS[setup]), job(*args, n=RANKS[setup], **AGAIN)

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms) == ("healthy", [])
    assert "could not be checked by doing it again (sdc_check): the parameters are sharded" in seen.said
    for rank in range(RANKS[setup]):
        assert "grad_made" in {row.port for row in seen.run.readings(rank=rank, phase="grad")}


@pytest.mark.parametrize("setup", ["accumulated", "offloaded"])
@pytest.mark.parametrize("what", ["activation", "gradient"])
def test_what_is_planted_on_one_rank_is_named(job, setup, what):
    (found,) = job(JOB, "--setup", setup, "--plant", what, "--at", "9").alarms

    assert (found["step"], place_of(found)) == (9, (1, {"dp": 1}))
    assert (found["site"], found["source"]["text"]) == ("blocks.1", DIVISION if what == "activation" else SPOILING)
    assert found["op"] == ("aten.div.Tensor" if what == "activation" else "aten.mul.Tensor")
    assert (found["cause"] == "division-by-zero") == (what == "activation")


def test_without_a_replay_the_gradient_nearest_to_the_loss_is_named(job):
    args = ("--setup", "accumulated", "--plant", "gradient", "--at", "3", "--steps", "4")
    (found,) = job(JOB, *args, agree=False).alarms

    assert (found["code"], found["step"], found["rank"], found["param"]) == ("HC313", 3, 1, "blocks.1.up.bias")


def test_a_scaler_that_skips_one_overflow_does_not_hide_what_no_scale_causes(job):
    args = (JOB, "--setup", "scaled", "--blow", "3", "--plant", "activation", "gradient", "--at", "9", "11")

    plain, seen = job(*args, record=False), job(*args)

    assert seen.digests == plain.digests
    skipped = {(rank, record.step) for rank, record in seen.run.step_records() if record.skipped}
    assert skipped == {(rank, step) for rank in (0, 1) for step in (3, 9, 11)}
    first, second = seen.alarms
    assert (first["step"], first["rank"], first["cause"]) == (9, 1, "division-by-zero")
    assert (second["step"], second["rank"], second["op"]) == (11, 1, "aten.mul.Tensor")
    assert second["source"]["text"] == SPOILING
    assert any("the scale is not the cause" in line for line in second["why"])


def test_a_head_that_goes_back_by_itself_is_not_blamed_for_what_came_before_it(job):
    args = (JOB, "--setup", "scaled", "--cut", "--plant", "activation", "--at", "9")

    plain, seen = job(*args, record=False), job(*args)

    assert seen.digests == plain.digests
    (found,) = seen.alarms
    assert (found["step"], found["rank"], found["site"]) == (9, 1, "blocks.1")
    assert (found["cause"], found["source"]["text"]) == ("division-by-zero", DIVISION)
