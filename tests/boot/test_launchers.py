"""Every rank of a real launcher is recorded, and the launcher's exit code is ours. Gloo on the CPU, two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypocenter.nouns import Place
from hypocenter.record.layout import rank_directories

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import given
import warm
from blocks import page_line
from here import here
from ports import free_port
from runner import run_command

SRC = Path(__file__).resolve().parents[2] / "src"
STANDINS = Path(__file__).resolve().parents[1] / "docs" / "standins"
SECONDS = 300

TRAIN = """
import gc, os, sys
import torch
import torch.distributed as dist

def train():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(int(os.environ.get("EXIT", "0")))
"""
SPAWN = (
    TRAIN.partition("if __name__")[0]
    + """
def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    train()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(int(os.environ["PORT"]),), nprocs=2)
"""
)
ACCELERATE = """
import gc, torch
from accelerate import Accelerator

def train(accelerator):
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randn(8, 4)).square().mean())
        optimizer.step()

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    train(accelerator)
    gc.collect()
    accelerator.wait_for_everyone()
    accelerator.end_training()
"""
SLURM_TRAIN = """
import socket
RANK, SIZE = int(os.environ[RANK_NAME]), int(os.environ[SIZE_NAME])

if __name__ == "__main__":
    address = f"tcp://127.0.0.1:{os.environ['PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=RANK, world_size=SIZE)
    train()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(int(os.environ.get("EXIT", "0")) if RANK == 1 else 0)
"""


def run(folder: Path, program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`hypocenter run` these words in the folder, with the program as train.py, as a user does."""
    (folder / "train.py").write_text(program)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {"PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", "TORCH_NUM_THREADS": "1"}
    env |= {"PORT": str(free_port())} | variables
    command = [sys.executable, "-m", "hypocenter", "run", "--out", "r", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def n_steps(folder: Path) -> dict[int, int]:
    """Steps that can be read back, by rank."""
    from hypocenter.record.reader import open_run

    found: dict[int, int] = dict.fromkeys(rank_directories(folder / "r"), 0)
    for rank, _ in open_run(folder / "r").step_records():
        found[rank] += 1
    return found


@pytest.mark.night
def test_plain_script_is_recorded(tmp_path: Path) -> None:
    program = TRAIN.replace('"gloo"', '"gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1')

    done = run(tmp_path, program, "train.py", EXIT="3")

    assert done.returncode == 3, done.stderr
    assert n_steps(tmp_path) == {0: 3}


@pytest.mark.slow
def test_torchrun_records_both_ranks(tmp_path: Path) -> None:
    words = here(page_line("running.md", "run torchrun")).split()[2:]

    done = run(tmp_path, TRAIN, *words, EXIT="1")

    assert done.returncode == 1, done.stderr
    assert n_steps(tmp_path) == {0: 3, 1: 3}
    run_json = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (run_json["command"], run_json["world_size"], run_json["exit_code"]) == (words, 2, 1)


@pytest.mark.night  # of launchers that start ranks on this machine torchrun is the one of the day
def test_accelerate_launch_records_both_ranks(tmp_path: Path) -> None:
    launch = page_line("running.md", "accelerate launch").split()[2:-1]
    assert [*launch, "--num_processes"] == page_line("transformers.md", "accelerate launch").split()[2:5]
    ranks = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    options = ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    variables = {"ACCELERATE_USE_CPU": "true", "HF_HOME": str(tmp_path)}

    done = run(tmp_path, ACCELERATE, *launch, *ranks, *options, "train.py", **variables)

    assert done.returncode == 0, done.stderr
    assert n_steps(tmp_path) == {0: 3, 1: 3}


@pytest.mark.night  # 31 CPU seconds; tests/frameworks has DeepSpeed by day, pages of clusters what launchers lose
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
def test_deepspeed_on_two_nodes_records_both_ranks_with_the_script_of_its_page(tmp_path: Path) -> None:
    """Nodes are reached through a stand-in for ssh and pdsh, which passes on what DeepSpeed itself passes on."""
    given.put([f"deepspeed/{name} as {name}" for name in ("train.py", "ds.json", "hosts")], tmp_path)
    words = [page_line("deepspeed.md", "printenv"), page_line("deepspeed.md", "deepspeed --hostfile")]
    (tmp_path / "launch.sh").write_text("\n".join(words))

    run_command(page_line("deepspeed.md", "bash launch.sh").replace("runs/ds", "r"), tmp_path)

    assert n_steps(tmp_path) == {0: 3, 1: 3}


@pytest.mark.night
def test_mp_spawn_records_both_ranks(tmp_path: Path) -> None:
    done = run(tmp_path, SPAWN, "train.py")

    assert done.returncode == 0, done.stderr
    assert n_steps(tmp_path) == {0: 3, 1: 3}


def played(folder: Path, name: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in forks, with a stand-in for srun or mpirun (tests/docs/standins) on PATH."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(STANDINS / f"{name}.py")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {
        "PATH": f"{path.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SRC),
        "OMP_NUM_THREADS": "1",
    }
    return warm.run(words, env=env | {"PORT": str(free_port())} | variables, cwd=folder, timeout=SECONDS)


def program_of(name: str) -> str:
    rank, size = (
        ("SLURM_PROCID", "SLURM_NTASKS") if name == "srun" else ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    )
    body = SLURM_TRAIN.replace("RANK_NAME", repr(rank)).replace("SIZE_NAME", repr(size))
    return TRAIN.partition("if __name__")[0] + body


def test_a_launcher_under_hypocenter_run_records_every_task(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program_of("srun"))
    ours = [sys.executable, "-m", "hypocenter", "run", "--out", "r"]

    done = played(tmp_path, "srun", *ours, "srun", "-n2", sys.executable, "train.py", EXIT="3")

    assert done.returncode == 3, done.stderr
    assert n_steps(tmp_path) == {0: 3, 1: 3}
    assert [place.launcher for place in places(tmp_path).values()] == ["srun", "srun"]


def test_hypocenter_run_in_each_task_shares_one_recording_and_diagnoses_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program_of("mpirun"))
    each = ["hypocenter", "run", "--out", "r", "train.py"]
    command = [sys.executable, str(STANDINS / "mpirun.py"), "-n", "2", "-x", "PYTHONPATH", *each]

    done = played(tmp_path, "mpirun", *command, EXIT="3")

    assert done.returncode == 3, done.stderr
    assert n_steps(tmp_path) == {0: 3, 1: 3}
    assert [place.launcher for place in places(tmp_path).values()] == ["mpirun", "mpirun"]
    assert done.stderr.count("recording to r") == 1
    said = " ".join(done.stderr.split())  # lines are wrapped, where depends on the length of the path
    assert said.count("overhead ") == 1, done.stderr  # one diagnosis for all
    run_json = json.loads((tmp_path / "r" / "run.json").read_text())
    assert (run_json["world_size"], run_json["status"], run_json["exit_code"]) == (2, "failed", 3)
    again = played(tmp_path, "mpirun", *command, EXIT="3")
    assert again.returncode == 2, again.stderr  # both tasks refuse: nothing is overwritten
    assert again.stderr.count("a recording exists there already") == 2


def places(folder: Path) -> dict[int, Place]:
    from hypocenter.record.reader import open_run

    return open_run(folder / "r").places
