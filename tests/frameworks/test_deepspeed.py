"""Real DeepSpeed on the CPU: scale, skips and culprits of every fp16 optimizer, and the training untouched."""

import pytest
from installed import skip_without

from hypocenter.nouns import Coords

skip_without("deepspeed")
pytestmark = pytest.mark.slow

JOB = "deepspeed_job.py"
BOTH = {(0, 3), (1, 3)}  # (rank, step)


def alarms(diagnosis):
    return [f for f in diagnosis.findings if f.severity in ("error", "warning")]


def scales(recording, rank=0):
    return [entry.scale for (r, _), entry in sorted(recording.entries.items()) if r == rank]


def test_zero_2_shows_scale_skip_and_culprit_on_each_rank_and_changes_no_bit(launch, recorded):
    args = (JOB, "--stage", "2", "--accumulate", "2", "--blow", "3")

    plain = launch(*args, record=False)
    seen = recorded(*args)

    assert seen.digests == plain
    assert [r.n_microbatches for r in seen.records.values()] == [2] * 12  # one update per boundary, six on each rank
    assert scales(seen, 0) == scales(seen, 1) == [256.0, 256.0, 256.0, 512.0, 256.0, 256.0]
    assert seen.skipped() == BOTH
    assert seen.culprits(0, 3) == seen.culprits(1, 3) == ["gain"]
    assert {name for r in seen.entries[0, 3].gradients for name in [r.site]} >= {"embed.weight", "blocks.1.bias"}
    entry = seen.entries[1, 3]
    assert (entry.kind, entry.facts["growth_interval"], entry.facts["backoff_factor"]) == ("DynamicLossScaler", 2, 0.5)
    assert entry.found_inf
    assert alarms(seen.diagnosis) == []  # the scale was too high once, and has come down


def test_zero_3_whether_a_scale_was_too_high_is_not_found_out_on_one_rank_alone(launch):
    seen = launch(JOB, "--stage", "3", "--blow", "3", "--boost", "1e6")

    assert seen.skipped() == BOTH
    assert seen.culprits(0, 3) == seen.culprits(1, 3) == ["gain"]
    assert scales(seen) == [256.0, 256.0, 256.0, 512.0, 256.0, 256.0]


@pytest.mark.parametrize("stage", ["2", "3"])
def test_an_offloaded_optimizers_gradients_are_seen(launch, stage):
    seen = launch(JOB, "--stage", stage, "--offload", "--accumulate", "2", "--blow", "3")

    assert seen.skipped() == BOTH
    assert seen.culprits(0, 3) == seen.culprits(1, 3) == ["gain"]
    assert all(record.grad_norm for record in seen.records.values())
    assert alarms(seen.diagnosis) == []


def test_zero_1_names_the_op_that_overflows_without_a_scale_too(launch):
    seen = launch(JOB, "--stage", "1", "--blow", "3", "--boost", "1e6")

    (found,) = alarms(seen.diagnosis)
    assert (found.step, found.rank, found.cause, found.param) == (3, 1, "format-overflow", "gain")
    assert seen.skipped() == BOTH
    assert seen.culprits(0, 3) == ["gain"]


def test_without_zero_a_scale_that_the_engine_never_applied_is_not_blamed(launch):
    seen = launch(JOB, "--stage", "0", "--static", "128", "--blow", "3", "--boost", "1e6", n_ranks=1)

    assert seen.skipped() == {(0, 3)}
    assert seen.culprits(0, 3) == ["gain"]
    assert seen.entries[0, 3].kind == "LossScaler"
    (found,) = alarms(seen.diagnosis)
    assert (found.step, found.cause) == (3, "format-overflow")
    said = any("does not multiply the loss" in note for note in seen.diagnosis.notes)
    assert {entry.scale for entry in seen.entries.values()} == ({1.0} if said else {128.0})


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_as_it_is_usually_set_up_a_skip_does_not_hide_what_no_scale_causes(job, stage):
    args = (JOB, "--stage", stage, "--usual", "--accumulate", "2", "--steps", "12", "--blow", "3")
    args = (*args, "--plant", "activation", "gradient", "--at", "9", "11")

    plain, seen = job(*args, record=False), job(*args)

    assert seen.digests == plain.digests
    skipped = {(rank, record.step) for rank, record in seen.run.step_records() if record.skipped}
    assert skipped == {(rank, step) for rank in (0, 1) for step in (3, 9, 11)}
    first, second = seen.alarms
    assert (first["step"], first["rank"], first["cause"]) == (9, 1, "division-by-zero")
    assert (second["step"], second["rank"], second["param"]) == (11, 1, "blocks.1.weight")
    assert second["source"]["text"] == 'factor.view(-1)[3] = float("nan")'
    assert any("the scale is not the cause" in line for line in second["why"])


@pytest.mark.parametrize(("stage", "precision"), [("1", "bf16"), ("2", "fp16"), ("3", "bf16")])
def test_as_it_is_usually_set_up_healthy_steps_that_are_done_again_are_silent(job, stage, precision):
    args = (JOB, "--stage", stage, "--usual", "--accumulate", "2", "--precision", precision)
    args = (*args, *(("--blow", "3") if precision == "fp16" else ()))

    plain, seen = job(*args, record=False), job(*args, sdc_check="every=1", audit="every=1")

    assert seen.digests == plain.digests
    assert (seen.diagnosis["status"], seen.alarms) == ("healthy", [])
    assert [(place.source, place.coords) for _, place in sorted(seen.run.places.items())] == [
        ("DeepSpeed", Coords(dp=rank)) for rank in (0, 1)
    ]
    assert ("again[0]" in {row.port for row in seen.run.readings(rank=1, site="sdc")}) == (stage != "3")
    assert ("grad_made" in {row.port for row in seen.run.readings(rank=1, phase="grad")}) == (stage != "3")
    for refused in ("could not be checked by doing it again (sdc_check)", "could not be audited"):
        assert (refused in seen.said) == (stage == "3")


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_healthy_run_has_nothing_to_report(launch, precision):
    seen = launch(JOB, "--stage", "2", "--precision", precision, "--steps", "8", n_ranks=1)

    assert seen.diagnosis.status == "healthy"
    assert alarms(seen.diagnosis) == []
    assert len(seen.records) == 8
    assert seen.skipped() == set()
    assert bool(seen.entries) == (precision == "fp16")
    assert all(record.grad_norm and record.loss for record in seen.records.values())
