"""What is imposed on whole programs: trainers of others, several ranks, DeepSpeed, Megatron-Core."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.numpy import save_file

from hypocenter.compare.updates.recompute import recompute
from hypocenter.compare.values.bits import Array
from hypocenter.compare.weights import elements
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import whole
from hypocenter.record.reader import RecordedRun, open_run

sys.path.insert(0, str(Path(__file__).parents[2] / "processes"))

import warm

HERE = Path(__file__).parent / "programs"
FRAMEWORKS = Path(__file__).parents[2] / "frameworks"
TORCHRUN = (str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", "2")


def recorded(
    folder: Path, *words: str, options: tuple[str, ...] = (), name: str = "run"
) -> tuple[subprocess.CompletedProcess[str], Path]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {
        "PYTHONPATH": str(Path(__file__).parents[3] / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "NO_COLOR": "1", "PYTHONWARNINGS": "ignore", "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    command = [sys.executable, "-m", "hypocenter", "run", "--out", name, *options, *words]
    return warm.run(command, env=env, timeout=240, cwd=folder), folder / name


def rates(run: RecordedRun) -> list[float | None]:
    return [record.lr for rank, record in run.step_records() if rank == 0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["alone", "pending"])
def test_a_rank_that_stops_waits_for_no_rank_that_is_stuck(tmp_path: Path, kind: str) -> None:
    options = ("--stop-after-step", "3", "--agree-timeout-s", "2")

    done, folder = recorded(tmp_path, *TORCHRUN, str(HERE / "stuck.py"), kind, options=options)

    step, left = (tmp_path / "rank-0").read_text().split()
    assert (step, (tmp_path / "rank-1").read_text()[0]) == ("3", "1")
    assert time.time() - float(left) < 900  # gloo itself would wait for half an hour
    assert "stopped after step 3, as asked for" in done.stderr
    assert "closing signal SIGTERM" not in done.stderr  # torchrun had to end none
    assert [record.step for rank, record in open_run(folder).step_records() if rank == 0] == [0, 1, 2, 3]


@pytest.mark.night
def test_a_transformers_trainer_with_workers_is_stopped_and_keeps_its_schedule(tmp_path: Path) -> None:
    script = str(HERE / "trainer.py")
    plain, _ = recorded(tmp_path, script, "0", name="plain")
    done, folder = recorded(
        tmp_path, script, "0", options=("--impose-lr", "0", "--stop-after-step", "3", "--save-initial-weights")
    )

    assert plain.returncode == done.returncode == 0, done.stderr
    assert "trained" in plain.stdout
    assert "trained" not in done.stdout
    shown = re.findall(r"rate .*", plain.stdout)
    assert re.findall(r"rate .*", done.stdout) == shown[:3]  # the last step's is not logged any more
    assert rates(open_run(folder)) == [0.0] * 4
    assert "imposed: stop after step 3; learning rate 0 at every update; initial weights written" in done.stderr


@pytest.mark.night
def test_a_transformers_trainer_starts_from_another_seeds_weights(tmp_path: Path) -> None:
    script = str(HERE / "trainer.py")
    first, folder = recorded(tmp_path, script, "0", options=("--save-initial-weights",), name="first")
    done, run = recorded(tmp_path, script, "0", options=("--initial-weights", "first"))

    mine, other = (
        [record.loss for _, record in open_run(each).step_records()] for each in (folder, run)
    )  # fmt: skip
    assert first.returncode == done.returncode == 0, done.stderr
    assert mine == other
    assert "initial weights of 16 parameters" in open_run(run).run.imposed["initial_weights"]


@pytest.mark.night
def test_lightning_is_stopped_at_rate_zero(tmp_path: Path) -> None:
    done, folder = recorded(
        tmp_path, str(HERE / "fabric.py"),
        options=("--impose-lr", "0", "--stop-after-step", "2", "--level", "tensors", "--save-initial-weights"),
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "trained" not in done.stdout
    assert rates(open_run(folder)) == [0.0] * 3
    for row in recompute(open_run(folder), 2):
        assert row.verdict == "as-stated"
        assert (row.update.before.raw == row.update.after.raw).all()


@pytest.mark.night
def test_a_program_that_cannot_get_its_weights_ends_with_2_before_it_trains(tmp_path: Path) -> None:
    recorded(tmp_path, str(HERE / "fabric.py"), options=("--save-initial-weights", "--stop-after-step", "0"), name="a")

    done, folder = recorded(tmp_path, str(HERE / "trainer.py"), "0", options=("--initial-weights", "a"))
    missing, _ = recorded(tmp_path, str(HERE / "fabric.py"), options=("--initial-weights", "nowhere"), name="b")
    empty, _ = recorded(tmp_path, str(HERE / "fabric.py"), options=("--gradients-from", "a"), name="c")

    assert done.returncode == 2
    assert "the weights do not fit the model: 16 of 16 parameters get none" in done.stderr
    assert "rate" not in done.stdout
    assert (folder / ".refused").exists()
    assert (missing.returncode, empty.returncode) == (2, 2)
    assert "option 'initial_weights' names what is not there" in missing.stderr
    assert "the recording holds no gradients" in empty.stderr


SHARDED = pytest.param(
    "sharded", marks=pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 has no fully_shard on CPUs")
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replicated", SHARDED])
def test_two_ranks_start_from_others_weights_and_stop_together(tmp_path: Path, kind: str) -> None:
    script = str(HERE / "ddp.py")
    words = (*TORCHRUN, script)
    first, _ = recorded(tmp_path, *words, "0", kind, options=("--save-initial-weights",), name="first")
    done, folder = recorded(
        tmp_path, *words, "1", kind, options=("--initial-weights", "first", "--stop-after-step", "2"), name="second"
    )

    assert first.returncode == done.returncode == 0, done.stderr
    expected, found = (sorted(re.findall(r"rank \d loss .*", each.stdout)) for each in (first, done))
    assert len(found) >= 4
    assert set(found) <= set(expected)
    assert {rank: record.step for rank, record in open_run(folder).step_records()} == {0: 2, 1: 2}
    weights = read_checkpoint(tmp_path / "first")
    assert {name: tensor.shape for name, tensor in weights.tensors.items()} == {
        "0.weight": (9, 4), "0.bias": (9,), "2.weight": (1, 9), "2.bias": (1,),
    }  # fmt: skip


def test_ranks_that_cannot_get_their_weights_all_end_and_the_code_is_2(tmp_path: Path) -> None:
    recorded(tmp_path, str(HERE / "fabric.py"), options=("--save-initial-weights", "--stop-after-step", "0"), name="a")

    done, _ = recorded(tmp_path, *TORCHRUN, str(HERE / "ddp.py"), "0", options=("--initial-weights", "a"))

    assert done.returncode == 2, done.stderr
    assert "loss" not in done.stdout
    assert "the weights do not fit the model: 4 of 4 parameters get none" in done.stderr


def values_of(folder: Path) -> dict[str, Array]:
    """All weights of a checkpoint, in float64."""
    found = read_checkpoint(folder).tensors
    return {n: elements.values(t.read(whole(t.shape)), t.dtype) for n, t in found.items() if n.endswith(ENDS)}


ENDS = (".weight", ".bias", "gain")


@pytest.mark.night
@pytest.mark.parametrize(
    ("job", "args"),
    [
        ("megatron_job.py", ("--tp", "2", "--precision", "bf16")),
        ("megatron_job.py", ("--pp", "2", "--precision", "bf16")),
        ("megatron_job.py", ("--distopt", "--precision", "fp16")),
        ("deepspeed_job.py", ("--stage", "0", "--precision", "fp16")),
        ("deepspeed_job.py", ("--stage", "2", "--precision", "bf16")),
    ],
)
def test_frameworks_with_copies_in_float32_start_from_the_weights_and_stay_there_at_rate_zero(
    tmp_path: Path, job: str, args: tuple[str, ...]
) -> None:
    words = (*TORCHRUN, str(FRAMEWORKS / job), *args, "--steps", "3")
    options = ("--save-initial-weights", "--impose-lr", "0", "--level", "tensors")
    first, _ = recorded(tmp_path, *words, options=options, name="first")
    assert first.returncode == 0, first.stderr
    twice = {name: 2 * values for name, values in values_of(tmp_path / "first").items()}
    save_file({name: values.astype("float32") for name, values in twice.items()}, tmp_path / "twice.safetensors")

    done, folder = recorded(
        tmp_path, *words, options=(*options, "--initial-weights", "twice.safetensors"), name="second"
    )

    assert done.returncode == 0, done.stderr
    assert all((values == twice[name]).all() for name, values in values_of(folder).items())  # which no format rounds
    digests = [sorted(re.findall(r"rank \d digest .*", each.stdout)) for each in (first, done)]
    assert len(digests[0]) == len(digests[1]) == 2
    assert not set(digests[0]) & set(digests[1])  # copies of the first weights would have come back at the first step
    assert rates(open_run(folder)) == [0.0] * 3
    rows = [row for step in range(3) for row in recompute(open_run(folder), step)]
    assert {row.verdict for row in rows} == {"as-stated"}
    assert all((row.update.before.raw == row.update.after.raw).all() for row in rows)
