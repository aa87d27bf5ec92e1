"""Real runs of several ranks against one process: the same when they are right, else the right first place."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import launch

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.verdict import by_chance
from hypocenter.record.reader import open_run

JOB = Path(__file__).with_name("layouts_job.py")
RECORDED = {"level": "modules", "sketch": True, "param_schedule": "every=1"}
N_RANKS = {"one": 1, "fsdp-tp": 4}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A function that records a program once and gives its directory."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def directory(layout: str, *options: str, **config: object) -> Path:
        key = (layout, *options)
        if key not in known:
            out = folder / str(len(known))
            ended = launch(JOB, *key, n=N_RANKS.get(layout, 2), out=out, config=RECORDED | config)
            assert ended.code == 0, ended.stderr
            assert options or not ended.alarms  # nothing is planted
            known[key] = out
        return known[key]

    return directory


@pytest.fixture
def compared(recorded):
    """A function that compares a layout with one process, whose noise was measured."""

    def compare(layout: str, *options: str, baseline: tuple[str, ...] = ()) -> Comparison:
        one = recorded("one", *baseline, calibrate="every=1")
        return compare_runs(open_run(one), open_run(recorded(layout, *options)))

    return compare


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "tp", "sp", "fsdp-tp"])
def test_a_right_layout_is_the_same_as_one_process(compared, layout):
    found = compared(layout)

    assert found.status == "same", (found.sentence, found.notes)
    assert found.floor_source == "calibration"
    assert sum(row.verdict == "cannot-tell" for row in found.rows) <= by_chance(found.n_noisy, found.budget)
    phases = {row.pair.baseline[0].phase for row in found.rows if row.verdict in ("equal", "within-noise")}
    assert phases >= {"param", "forward", "loss", "backward", "grad", "optimizer"}
    deep = [row for row in found.rows if row.distance is not None and row.distance.depth == "sketch"]
    assert len(deep) > 0.9 * len(found.rows)


def by_night(*case):
    """Of bugs by whose kind a comparison does not differ, the day has another."""
    return pytest.param(*case, marks=pytest.mark.night)


@pytest.mark.night
def test_stages_of_a_pipeline_are_the_same_as_one_process(compared):
    found = compared("pp", baseline=("accumulate=2",))

    assert found.status == "same", (found.sentence, found.notes)
    assert {"blocks.1", "blocks.2"} <= {row.pair.baseline[0].site for row in found.rows if row.verdict == "equal"}


def test_two_layouts_are_the_same_as_each_other(recorded):
    found = compare_runs(open_run(recorded("ddp")), open_run(recorded("fsdp")))

    assert found.status == "same", (found.sentence, found.notes)


@pytest.mark.parametrize(
    ("layout", "planted", "baseline", "phase", "site", "port"),
    [
        ("ddp", ("eps=1e-3",), (), "forward", "blocks.2.ln2", "out[0]"),  # H1
        ("tp", ("interleaved=1",), (), "forward", "blocks.2.attn", "in[0]"),  # H2
        by_night("fsdp", ("tanh=1",), (), "forward", "blocks.2.mlp.act", "out[0]"),  # H5
        ("tp", ("head_std=0.003",), (), "param", "head.weight", "value"),  # H9
        by_night("fsdp-tp", ("no_bias=1",), (), "forward", "blocks.1.attn.q", "out[0]"),  # H11
        ("sp", ("not_reduced=1",), (), "grad", "blocks.0.ln1.weight", "grad"),  # G2
        by_night("ddp", ("padding=1",), ("padding=1",), "loss", "", "value"),  # G6
        ("ddp", ("accumulate=2", "only_first=1"), ("accumulate=2",), "grad", "emb.weight", "grad"),  # G8
        by_night("tp", ("gate=1", "auxiliary_scale=2"), ("gate=1",), "backward", "blocks.3", "grad_out[0]"),  # G12
        ("pp", ("local_index=1",), ("accumulate=2",), "forward", "blocks.2", "in[0]"),  # G16
    ],
    ids=["h1", "h2", "h5", "h9", "h11", "g2", "g6", "g8", "g12", "g16"],
)
def test_a_bug_is_found_where_it_is(compared, layout, planted, baseline, phase, site, port):
    found = compared(layout, *planted, baseline=baseline)

    assert found.status == "diverged", found.sentence
    assert found.first is not None
    assert (found.first.step, found.first.phase, found.first.site, found.first.port) == (0, phase, site, port)


def test_gradients_that_were_not_divided_differ_by_the_number_of_ranks(compared):
    found = compared("ddp", "summed=1")  # G11

    assert found.status == "diverged"
    assert found.first.phase == "grad"
    assert "gradients differ by one factor, 2" in found.sentence


def test_samples_in_another_order_are_said_and_not_blamed(compared):
    found = compared("ddp", "interleave=1")

    assert found.status == "same", (found.sentence, found.notes)
    assert any("another order" in note for note in found.notes)


@pytest.mark.night
def test_batches_of_different_sizes_are_never_the_same(compared):
    found = compared("ddp", "uneven=1")

    assert found.status == "cannot-tell"
    assert any("different sizes" in note for note in found.notes)


@pytest.mark.night
@pytest.mark.parametrize("layout", ["fsdp-tp", "pp"])
def test_training_is_the_same_to_the_bit_with_and_without(tmp_path, layout):
    n = N_RANKS.get(layout, 2)

    plain = launch(JOB, layout, n=n)
    recorded = launch(JOB, layout, n=n, out=tmp_path / "run", config=RECORDED)

    assert (plain.code, recorded.code) == (0, 0), plain.stderr + recorded.stderr
    assert "bits" in plain.stdout
    assert sorted(plain.stdout.splitlines()) == sorted(recorded.stdout.splitlines())
