"""Schedules of torch.distributed.pipelining that split a backward, or call it out of order, with dropout."""

import pytest

from tests.frameworks.conftest import place_of

pytestmark = pytest.mark.slow

JOB = "pipelining_job.py"
SCHEDULES = ("interleaved-zero-bubble", "zbv", "dualpipev")
PER_STEP = 16  # micro-batches of two stages on each rank


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_healthy_steps_that_are_done_again_are_silent_and_change_no_bit(job, schedule):
    plain = job(JOB, "--schedule", schedule, record=False)
    seen = job(JOB, "--schedule", schedule, sdc_check="every=1", audit="every=1")

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms) == ("healthy", [])
    records = seen.run.step_records()
    assert {record.n_microbatches for _, record in records} == {PER_STEP}
    last = SCHEDULES.index(schedule) == 0  # the rank of the last stage: of a V it is the first stage's
    assert all((record.loss is not None) == (rank == last) for rank, record in records)
    for rank in (0, 1):
        assert "again[0]" in {row.port for row in seen.run.readings(rank=rank, site="sdc")}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_division_by_zero_in_a_forward_is_named(job, schedule):
    (found,) = job(JOB, "--schedule", schedule, "--plant", "--at", "2").alarms

    assert (found["step"], place_of(found)[0], found["site"]) == (2, 1, "blocks.1")
    assert (found["op"], found["cause"], found["confidence"]) == ("aten.div.Tensor", "division-by-zero", "proven")
    assert "torch.full_like(hidden, self.divisor)" in found["source"]["text"]
