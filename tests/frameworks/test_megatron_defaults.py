"""Megatron-Core as Megatron-LM's own defaults run it: dropout from its tracker, fused gradients, recompute, overlap.

Each job is run plain, and with every step done again while nothing is wrong: no bit of training may differ.
"""

import pytest
from installed import skip_without

from tests.frameworks.conftest import place_of

skip_without("megatron.core")

STEPS = ("--steps", "4", "--dropout", "0.1", "--fused")
TOGETHER = ("--steps", "12")  # by then the ranks of a model that communicates meet at each step
JOBS = {
    "tensor-and-sequence-parallel": (
        *STEPS, "--precision", "bf16", "--tp", "2", "--sp", "--recompute", "selective", "--tied", *TOGETHER,
    ),
    "interleaved-pipeline": (
        *STEPS, "--precision", "bf16", "--pp", "2", "--vpp", "2", "--layers", "4", "--recompute", "full", "--overlap",
    ),
    "experts-and-sharded-optimizer": (
        *STEPS, "--precision", "fp16", "--distopt", "--overlap", "--experts", "4", "--recompute", "full",
    ),
}  # fmt: skip
AGAIN = {"sdc_check": "every=1", "audit": "every=1"}
NAMED = {  # coordinates of rank 1, and the layer that a fault is planted in there
    "tensor-and-sequence-parallel": ({"tp": 1, "pp": 0, "dp": 0}, "decoder.layers.1.mlp"),
    "interleaved-pipeline": ({"tp": 0, "pp": 1, "dp": 0}, "decoder.layers.3.mlp"),
    "experts-and-sharded-optimizer": ({"tp": 0, "pp": 0, "dp": 1}, "decoder.layers.1.mlp"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_healthy_steps_that_are_done_again_are_silent_and_change_no_bit(job, name):
    plain, seen = job("megatron_job.py", *JOBS[name], record=False), job("megatron_job.py", *JOBS[name], **AGAIN)

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms) == ("healthy", [])
    for rank in (0, 1):  # each has done steps again, and what it got is what was used
        assert "grad_made" in {row.port for row in seen.run.readings(rank=rank, phase="grad")}


@pytest.mark.night  # by day test_seeds_procedure.py plants it in two tensor-parallel ranks
@pytest.mark.parametrize("name", JOBS)
def test_a_division_by_zero_in_a_forward_is_named(job, name):
    (found,) = job("megatron_job.py", *JOBS[name], "--steps", "4", "--plant", "activation", "--at", "2").alarms

    coords, layer = NAMED[name]
    assert (found["step"], place_of(found)) == (2, (1, coords))
    assert (found["site"], found["op"], found["cause"]) == (layer, "aten.div.Tensor", "division-by-zero")
    assert found["source"]["text"] == "return output[0] / torch.zeros_like(output[0]), output[1]"
    assert found["confidence"] == "proven"
