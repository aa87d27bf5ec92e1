"""Real trainings, each with one planted difference: the first place must be the right one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from little_gpt import record

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.record.reader import open_run


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A function that records a program once and gives its directory."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def directory(name: str = "base", **differences) -> Path:
        key = name, tuple(sorted((k, str(v)) for k, v in differences.items()))
        if key not in known:
            known[key] = record(folder / f"{name}-{len(known)}", **differences)
        return known[key]

    return directory


@pytest.fixture
def compared(recorded):
    """A function that compares the good program with one that has the differences given."""

    def compare(noise: tuple[Path, ...] = (), **differences) -> Comparison:
        options = Options(noise=[open_run(path) for path in noise])
        return compare_runs(open_run(recorded()), open_run(recorded("other", **differences)), options=options)

    return compare


def test_the_same_program_twice_is_the_same_to_the_bit(compared):
    found = compared()

    assert found.status == "same"
    assert {row.verdict for row in found.rows} == {"equal"}
    assert found.sentence.endswith("equal to the bit")
    assert found.cause is None
    assert found.first is None


@pytest.mark.parametrize(
    ("planted", "phase", "site", "port"),
    [
        ({"eps": 1e-3}, "forward", "blocks.2.ln2", "out[0]"),
        ({"attention_scale": 1.0}, "forward", "blocks.1", "in[0]"),
        ({"wide_mask": True}, "forward", "blocks.1", "in[0]"),
        ({"square": 1.01}, "forward", "blocks.2", "in[0]"),
        ({"residual": 0.5}, "forward", "blocks.3", "out[0]"),
        ({"shared_code": 1.1}, "forward", "", "in[0]"),
        ({"short_projection": True}, "forward", "blocks.1.proj", "out[0]"),
        ({"bad_backward": 1.05}, "backward", "blocks.2.ln2", "grad_in[0]"),
        ({"bad_gate": 3.0}, "backward", "blocks.1.up", "grad_in[0]"),
        ({"bad_sum": 1.1}, "backward", "blocks.1", "grad_out[0]"),
        ({"bad_weight_grad": 1.1}, "grad", "blocks.1.down.weight", "grad"),
        ({"initial": True}, "param", "blocks.2.up.weight", "value"),
        ({"decay": 0.1}, "optimizer", "shared.bias", "value"),
        ({"lr": 1.1e-3}, "optimizer", "lr", "value"),
        ({"adam_eps": 1e-5}, "optimizer", "emb.weight", "value"),
        ({"beta2": 0.95}, "optimizer", "emb.weight", "exp_avg_sq"),
        ({"data_seed": 2}, "data", "batch.in[0]", "digest"),
        ({"shift": False}, "loss", "", "digest"),
        ({"accumulate": 1}, "loss", "", "value"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_planted_difference_is_found_where_it_is(compared, planted, phase, site, port):
    found = compared(**planted)

    assert found.status == "diverged"
    assert found.first is not None
    assert (found.first.step, found.first.phase, found.first.site, found.first.port) == (0, phase, site, port)
    assert found.first.candidate_site == site
    assert found.first.inputs_agree


def test_code_between_two_calls_is_named_by_both(compared):
    found = compared(square=1.01)

    assert found.first.between == ("blocks.2.act out[0]", "blocks.2.down in[0]")
    assert "blocks.2.down in[0], computed by blocks.2," in found.sentence


def test_one_factor_in_all_gradients_accuses_no_module(compared):
    found = compared(clip=0.25)

    assert found.status == "diverged"
    assert found.first.phase == "grad"
    assert "gradients differ by one factor" in found.sentence


@pytest.mark.night
def test_another_thread_count_is_within_noise_of_a_repeat_with_one(compared, recorded):
    found = compared(noise=(recorded("repeat", n_threads=2),), n_threads=3)

    assert found.status == "same"
    assert found.floor_source == "repeats"
    assert any(row.floor.n_samples > 0 for row in found.rows)


def test_another_thread_count_without_a_repeat_is_never_diverged(compared):
    found = compared(n_threads=2)

    assert found.status in ("same", "cannot-tell")
    assert found.floor_source == "assumed"
    assert found.first is None or found.status == "cannot-tell"


def test_a_repeat_sharpens_what_can_be_seen(compared, recorded):
    repeat = recorded("repeat", n_threads=2)

    found = compared(noise=(repeat,), square=1.0 + 2.0**-15)

    assert found.status == "diverged"
    assert found.first.between == ("blocks.2.act out[0]", "blocks.2.down in[0]")
    assert compared(square=1.0 + 2.0**-15).status == "cannot-tell"


def test_calibration_measures_the_floor_from_one_run(recorded):
    baseline = open_run(recorded("calibrated", calibrate="every=1"))

    threads = compare_runs(baseline, open_run(recorded("repeat", n_threads=2)))
    small = compare_runs(baseline, open_run(recorded("small", square=1.0 + 2.0**-15)))

    assert (threads.status, threads.floor_source) == ("same", "calibration")
    assert (small.status, small.first.site, small.first.phase) == ("diverged", "blocks.2", "forward")
    assert small.first.row.floor.source == "calibration"


def test_repeats_that_are_equal_to_the_bit_measure_nothing(compared, recorded):
    found = compared(noise=(recorded("twin"),), n_threads=2)

    assert found.floor_source == "assumed"
    assert found.status != "diverged"
    assert any("equal to the baseline to the bit" in note for note in found.notes)


def test_a_layer_that_computes_in_bfloat16_and_casts_back_is_named(compared):
    found = compared(short_projection=True)

    assert (found.cause, found.fit.name) == ("precision-mismatch", "precision-of-one-module")
    assert found.fit.text == "blocks.1.proj is float32 in the baseline and bfloat16 in the candidate"


def test_dropout_with_other_random_numbers_cannot_be_judged(recorded):
    baseline, candidate = recorded("drop", dropout=0.1), recorded("drop", dropout=0.1, seed=8)

    found = compare_runs(open_run(baseline), open_run(candidate))

    assert found.status == "cannot-tell"
    assert found.cause == "rng-desync"
    assert found.first.site == "blocks.0.drop"


def test_dropout_on_one_side_is_a_difference(compared):
    found = compared(dropout=0.1)

    assert found.status == "diverged"
    assert found.first.site == "blocks.0.drop"


def test_nan_in_the_same_places_is_the_same(recorded):
    baseline, candidate = recorded("nan", nan=True), recorded("nan-too", nan=True)

    found = compare_runs(open_run(baseline), open_run(candidate))

    assert found.status == "same"


def test_nan_on_one_side_is_a_difference(compared):
    found = compared(nan=True)

    assert found.status == "diverged"
    assert (found.first.phase, found.first.site, found.first.error) == ("param", "emb.weight", float("inf"))


def test_more_steps_on_one_side_are_left_out(compared):
    found = compared(steps=3)

    assert found.status == "same"
    assert found.n_steps == 2


def test_without_sketches_on_one_side_summaries_are_compared(compared):
    same, other = compared(sketch=False), compared(sketch=False, eps=1e-2)

    assert (same.status, same.depth) == ("same", "summary")
    assert (other.status, other.first.site, other.first.port) == ("diverged", "blocks.2.ln2", "out[0]")


def test_a_whole_program_in_bfloat16_is_named_by_its_parameters(compared):
    found = compared(dtype=torch.bfloat16)

    assert found.status == "diverged"
    assert found.first.phase == "param"
    assert found.cause == "precision-mismatch"
    assert found.fit.values["coarser"] == "candidate"
