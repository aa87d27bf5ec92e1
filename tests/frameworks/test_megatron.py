"""Real Megatron-Core on the CPU: scale, skips and culprits of its mixed-precision optimizers, training untouched."""

import shutil
import sys
from pathlib import Path

import pytest
from installed import skip_without

from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from blocks import DOCS, blocks
from runner import run_page

skip_without("megatron.core")

HERE = Path(__file__).parent
JOB = "megatron_job.py"
PROGRAM = """
import argparse, runpy, sys
import megatron_ready

parser = argparse.ArgumentParser()
parser.add_argument("--tensor-model-parallel-size")
parser.add_argument("--bf16", action="store_true")
given = parser.parse_args()
sys.argv[1:] = ["--tp", given.tensor_model_parallel_size, *(["--precision", "bf16"] if given.bf16 else [])]
runpy.run_path("megatron_job.py", run_name="__main__")
"""
"""Stands for Megatron-LM's program on the page: its options, and the job of this folder."""
BOTH = {(0, 3), (1, 3)}  # (rank, step)


def alarms(diagnosis):
    return [f for f in diagnosis.findings if f.severity in ("error", "warning")]


def scales(recording, rank):
    return [entry.scale for (r, _), entry in sorted(recording.entries.items()) if r == rank]


def test_the_distributed_optimizer_shows_scale_skip_and_culprit_and_no_bit_changes(launch, recorded):
    args = (JOB, "--distopt", "--blow", "3", "--by", "3e3")

    plain = launch(*args, record=False)
    seen = recorded(*args)

    assert seen.digests == plain
    assert scales(seen, 0) == scales(seen, 1) == [1024.0] * 4 + [512.0] * 2
    assert seen.skipped() == BOTH
    assert [r.n_microbatches for r in seen.records.values()] == [2] * 12
    for rank in (0, 1):
        assert "output_layer.weight" in seen.culprits(rank, 3)
        assert all(not name.startswith("module.") for name in seen.culprits(rank, 3))
    entry = seen.entries[0, 3]
    assert (entry.kind, entry.facts["growth_interval"], entry.facts["growth_tracker"]) == ("DynamicGradScaler", 100, 3)
    assert alarms(seen.diagnosis) == []  # the scale was too high once, and has come down


@pytest.mark.night
def test_tensor_parallel_ranks_are_not_replayed_and_name_their_own_parts(launch):
    seen = launch(JOB, "--tp", "2", "--static", "1024", "--blow", "3")

    assert seen.skipped() == BOTH
    assert {entry.scale for entry in seen.entries.values()} == {1024.0}
    assert seen.entries[1, 0].kind == "ConstantGradScaler"
    for rank in (0, 1):
        assert "decoder.layers.0.mlp.linear_fc1.weight" in seen.culprits(rank, 3)


@pytest.mark.night
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_healthy_run_has_nothing_to_report(launch, precision):
    seen = launch(JOB, "--precision", precision, n_ranks=1)

    assert seen.diagnosis.status == "healthy"
    assert alarms(seen.diagnosis) == []
    assert len(seen.records) == 6
    assert seen.skipped() == set()
    assert bool(seen.entries) == (precision == "fp16")
    assert all(record.grad_norm and record.loss for record in seen.records.values())


def test_blocks_of_its_page_run(tmp_path):
    for name in (JOB, "megatron_ready.py", "megatron_cpu_shim.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "pretrain_gpt.py").write_text(PROGRAM, encoding="utf-8")

    run_page(blocks(DOCS / "megatron.md"), tmp_path)

    places = open_run(tmp_path / "runs/gpt").places
    assert [place.coords.tp for _, place in sorted(places.items())] == [0, 1]
