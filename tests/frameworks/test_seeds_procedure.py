"""What engineers did by hand on Megatron-LM when grad_norm was NaN happens by itself on a real Megatron-Core run.

By hand: write a map from parameter numbers to names for each tp, pp and dp rank; check every gradient for NaN in
clip_grad_norm and print the rank's place; find the module of the parameter; hook its forward and backward to save
what goes in and out; run the operator alone on what was saved. Here: two tensor-parallel ranks, one bad layer.
"""

import json
import math
import sys
from pathlib import Path

import pytest
import warm
from installed import skip_without

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
from launch import environment, launch

from hypocenter.nouns import Coords
from hypocenter.record.reader import open_run

skip_without("megatron.core")
JOB = Path(__file__).with_name("megatron_job.py")
LAYER, STEP = "decoder.layers.1", 3


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    args = ("--precision", "bf16", "--tp", "2", "--plant", "activation", "--at", str(STEP))
    return launch(JOB, *args, n=2, out=tmp_path_factory.mktemp("seeds") / "run", timeout=300)


@pytest.fixture(scope="module")
def run(ended):
    assert ended.code == 0, ended.stderr
    return open_run(ended.run)


def test_every_rank_has_its_place_and_the_names_of_its_parameters(run):
    assert {r: p.coords for r, p in run.places.items()} == {0: Coords(tp=0, pp=0, dp=0), 1: Coords(tp=1, pp=0, dp=0)}
    for rank in (0, 1):
        named = {r.site for r in run.readings(rank=rank, phase="grad", steps=[0])} - {"grad_norm"}
        assert len(named) == 28
        assert {f"{LAYER}.mlp.linear_fc1.weight", "embedding.word_embeddings.weight", "output_layer.weight"} <= named


def test_every_gradient_of_every_rank_is_checked_when_the_norm_is_computed(run):
    for rank in (0, 1):
        norms = {r.step: r.summary.n_nan for r in run.readings(rank=rank, site="grad_norm")}
        bad = {
            r.site for r in run.readings(rank=rank, phase="grad", steps=[STEP]) if r.port == "grad" and r.summary.n_nan
        }
        assert [norms[step] for step in range(STEP + 1)] == [0, 0, 0, 1]
        assert f"{LAYER}.mlp.linear_fc2.weight" in bad


def test_the_place_of_the_rank_and_the_operator_are_named(ended):
    (found,) = [f for f in ended.diagnosis["findings"] if f["severity"] == "error"]

    assert (found["rank"], found["coords"]["tp"], found["coords"]["pp"], found["coords"]["dp"]) == (1, 1, 0, 0)
    assert (found["step"], found["site"], found["op"]) == (STEP, f"{LAYER}.mlp", "aten.div.Tensor")
    assert "output[0] / torch.zeros_like" in found["source"]["text"]


def test_what_went_into_and_out_of_the_failing_module_is_there_forward_and_backward(run):
    rows = [r for r in run.readings(rank=1, steps=[STEP]) if r.replay and r.site == LAYER and not r.op]
    ports = {r.port: r.summary for r in rows}

    assert {"in[hidden_states]", "out[0]", "grad_out[0]", "grad_in[hidden_states]"} <= ports.keys()
    assert ports["in[hidden_states]"].n_nonfinite == 0
    assert ports["out[0]"].n_nonfinite > 0
    assert ports["grad_in[hidden_states]"].n_nan > 0
    assert all(math.isfinite(s.absmax) for s in ports.values())


def test_the_operator_can_be_run_alone_on_what_was_saved(ended):
    (found,) = [f for f in ended.diagnosis["findings"] if f["severity"] == "error"]
    bundle = ended.run / found["bundle"]

    assert json.loads((bundle / "op.json").read_text())["op"] == "aten.div.Tensor"
    done = warm.run([sys.executable, str(bundle / "repro.py")], env=environment(), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "inf" in done.stdout
