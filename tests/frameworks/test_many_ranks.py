"""Real DeepSpeed and Megatron-Core on two ranks: one bad value on one rank is named by rank, place, parameter and op.

Runs are forked (tests/ranks/forks.py); test_deepspeed and test_megatron start one of each by torchrun, as users do.
DeepSpeed's healthy twins are in test_deepspeed, under more options.
"""

import pytest

from hypocenter.nouns import Coords
from tests.frameworks.conftest import place_of

pytestmark = pytest.mark.night  # on two ranks CI has seen them: test_megatron.py, test_deepspeed.py
LATE = ("--steps", "12", "--at", "9")  # by then the ranks meet at each step, on a loaded machine too


MEGATRON = {
    "tp": ("--tp", "2"),
    "pp": ("--pp", "2"),
    "dp": ("--distopt",),
}
WHERE = {
    "tp": {"tp": 1, "pp": 0, "dp": 0},
    "pp": {"tp": 0, "pp": 1, "dp": 0},
    "dp": {"tp": 0, "pp": 0, "dp": 1},
}


@pytest.mark.parametrize("axis", MEGATRON)
def test_megatron_a_nan_in_one_gradient_is_named(job, axis):
    ran = job("megatron_job.py", "--precision", "bf16", *MEGATRON[axis], "--plant", "gradient", "--at", "3")

    (found,) = ran.alarms
    assert (found["step"], place_of(found)) == (3, (1, WHERE[axis]))
    assert (found["param"], found["op"]) == ("decoder.layers.1.mlp.linear_fc2.weight", "aten.copy_.default")
    assert found["source"]["text"] == 'factor.view(-1)[3] = float("nan")'
    assert any("rank 0 -> not finite too" in line for line in found["then"])


@pytest.mark.parametrize("axis", MEGATRON)
def test_megatron_a_division_by_zero_after_a_layer_is_named(job, axis):
    ran = job("megatron_job.py", "--precision", "bf16", *MEGATRON[axis], "--plant", "activation", "--at", "3")

    (found,) = ran.alarms
    assert (found["step"], place_of(found)) == (3, (1, WHERE[axis]))
    assert (found["site"], found["op"]) == ("decoder.layers.1.mlp", "aten.div.Tensor")
    assert found["cause"] == "division-by-zero"
    assert found["confidence"] == "proven"


def test_megatron_what_a_stage_received_is_not_its_fault(job):
    args = ("--precision", "bf16", "--pp", "2", "--plant", "activation", "--at", "3", "--on", "0")

    (found,) = job("megatron_job.py", *args).alarms

    assert place_of(found) == (0, {"tp": 0, "pp": 0, "dp": 0})
    assert (found["site"], found["op"]) == ("decoder.layers.0.mlp", "aten.div.Tensor")


@pytest.mark.parametrize("axis", MEGATRON)
def test_megatron_a_healthy_twin_is_silent_and_no_bit_changes(job, axis):
    args = ("megatron_job.py", "--precision", "bf16", *MEGATRON[axis])

    plain, seen = job(*args, record=False), job(*args)

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms, seen.diagnosis["notes"]) == ("healthy", [], [])
    places = seen.run.places
    assert {rank: place.source for rank, place in places.items()} == {0: "Megatron-Core", 1: "Megatron-Core"}
    assert places[1].coords == Coords(**WHERE[axis])
    assert places[1].groups[axis] == (0, 1)


def test_megatron_chunks_of_an_interleaved_pipeline_carry_the_models_own_names(job):
    run = job("megatron_job.py", "--precision", "bf16", "--pp", "2", "--vpp", "2", "--layers", "4").run

    assert run.places[0].layers == {"decoder.layers.0": 1, "decoder.layers.2": 3}
    assert run.places[1].layers == {"decoder.layers.1": 2, "decoder.layers.3": 4}
    for rank, layers in ((0, {"0", "2"}), (1, {"1", "3"})):
        named = {r.site for r in run.readings(rank=rank, phase="grad", site="decoder.layers.*")}
        assert {name.split(".")[2] for name in named} == layers


@pytest.mark.parametrize("stage", ["1", "3"])
def test_deepspeed_a_nan_in_one_gradient_is_named(job, stage):
    ran = job("deepspeed_job.py", "--stage", stage, "--precision", "bf16", "--plant", "gradient", *LATE)

    (found,) = ran.alarms
    assert (found["step"], place_of(found), found["param"]) == (9, (1, {"dp": 1}), "blocks.1.weight")
    assert (found["op"], found["source"]["text"]) == ("aten.copy_.default", 'factor.view(-1)[3] = float("nan")')


@pytest.mark.parametrize("stage", ["2", "3"])
def test_deepspeed_a_division_by_zero_is_named(job, stage):
    ran = job("deepspeed_job.py", "--stage", stage, "--precision", "bf16", "--plant", "activation", *LATE)

    (found,) = ran.alarms
    assert (found["step"], place_of(found), found["site"]) == (9, (1, {"dp": 1}), "")
    assert (found["op"], found["cause"]) == ("aten.div.Tensor", "division-by-zero")
    assert "torch.full_like(hidden, self.divisor)" in found["source"]["text"]


def test_zero_3_trains_on_after_a_replay_as_if_nothing_had_been(job):
    args = ("deepspeed_job.py", "--stage", "3", "--accumulate", "2", "--plant", "activation", *LATE)

    plain, seen = job(*args, record=False), job(*args)  # in float16: DeepSpeed skips the update

    assert seen.digests == plain.digests
    (found,) = seen.alarms
    assert (found["step"], place_of(found), found["op"]) == (9, (1, {"dp": 1}), "aten.div.Tensor")


def test_zero_3_a_replay_that_breaks_off_on_one_rank_harms_nobody(job):
    args = ("deepspeed_job.py", "--stage", "3", "--plant", "activation", *LATE, "--on", "0", "--refuse-again")

    plain, seen = job(*args, record=False), job(*args)

    assert "another rank did not come to gather a parameter" in seen.said
    assert "does not ask the others" not in seen.said  # told at once: nobody has waited in vain
    assert seen.digests == plain.digests
    (found,) = seen.alarms
    assert (found["step"], found["rank"]) == (9, 0)


def test_the_same_is_named_under_hypocenter_run(launch):
    seen = launch("megatron_job.py", "--pp", "2", "--precision", "bf16", "--plant", "gradient", "--at", "3")

    (found,) = [f for f in seen.diagnosis.findings if f.severity in ("error", "warning")]
    assert (found.step, found.rank, found.op) == (3, 1, "aten.copy_.default")
    assert found.param == "decoder.layers.1.mlp.linear_fc2.weight"
