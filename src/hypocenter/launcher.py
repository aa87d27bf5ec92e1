"""What the launcher told this process through its environment: which of many it is, and which attempt this is."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_RANKS_OF_NODE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
_NAMES = (
    ("CROSS_RANK", "deepspeed"),  # set by deepspeed.launcher.launch beside torchrun's variables
    ("ACCELERATE_MIXED_PRECISION", "accelerate"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "mpirun"),
    ("SLURM_PROCID", "srun"),
    ("PMI_RANK", "mpirun"),
)
_LARGEST_STEP = (
    0xFFFFFFF0  # SLURM numbers a batch script and an interactive shell above it (slurm.h: SLURM_BATCH_SCRIPT)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One of several processes that a launcher started side by side.

    `job` is the same for all of them, and for no others at the same time.
    """

    number: int
    n_tasks: int
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnNode:
    """Where a rank stands among those of its machine, and of the job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None  # None: no launcher says it
    n_ranks: int = 1  # of the machine


def on_node(environ: Mapping[str, str] = os.environ) -> OnNode:
    """Return where this process stands."""
    rank, world_size = rank_and_size(environ) or (0, 1)
    return OnNode(rank=rank, world_size=world_size, local_rank=local_rank(environ), n_ranks=ranks_of_node(environ))


def launcher(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of the innermost launcher (torchrun under srun is torchrun); "" when there is none."""
    for variable, name in _NAMES:
        if variable in environ and (name != "srun" or _in_a_step(environ)):
            return name
    return ""


def rank_and_size(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """Return (global rank, number of ranks) as the innermost launcher gave them; None when none did."""
    pairs = [("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]
    if _in_a_step(environ):
        size = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        pairs.insert(1, ("SLURM_PROCID", size))
    for rank, size in pairs:
        number = _number(environ, rank)
        if number is not None:
            return number, _number(environ, size) or 1
    return None


def task(environ: Mapping[str, str] = os.environ) -> Task | None:
    """Return which of several tasks this process is; None for a process that is alone."""
    known = rank_and_size(environ)
    if known is None or known[1] < 2:
        return None
    return Task(number=known[0], n_tasks=known[1], job=re.sub(r"[^A-Za-z0-9._-]+", "-", _job(environ))[:80])


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of this process on its machine; None when no launcher says it."""
    if launcher(environ) == "torchrun":  # srun's SLURM_LOCALID is that of the agent
        return _number(environ, "LOCAL_RANK")
    return next((n for name in _LOCAL_RANK if (n := _number(environ, name)) is not None), None)


def ranks_of_node(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many processes the launcher has put on this machine; 1 where it does not say."""
    names = (*_RANKS_OF_NODE, *(["SLURM_NTASKS_PER_NODE"] if launcher(environ) == "srun" else []))
    return next((n for name in names if (n := _number(environ, name))), 1)


def attempt(environ: Mapping[str, str] = os.environ) -> int:
    """Return how often this rank was started before: by torchrun's agent, and by SLURM that queued the job again."""
    elastic = _number(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    per_start = 1 + (_number(environ, "TORCHELASTIC_MAX_RESTARTS") or 0)
    return elastic + per_start * (_number(environ, "SLURM_RESTART_COUNT") or 0)


def _job(environ: Mapping[str, str]) -> str:
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if "RANK" in environ and elastic != "none":
        return elastic
    if "SLURM_JOB_ID" in environ:  # the same when the job is queued again
        return f"{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "LSB_JOBID"):
        if environ.get(name):
            return environ[name]
    is_one_machine = environ.get("LOCAL_WORLD_SIZE", "1") == environ.get("WORLD_SIZE", "")
    port = environ.get("MASTER_PORT", "0")
    return f"{port}-{os.getppid()}" if is_one_machine or "MASTER_PORT" not in environ else port


def _in_a_step(environ: Mapping[str, str]) -> bool:
    """Return whether srun started this process: a batch script has SLURM_PROCID=0, too, and is no rank."""
    step = _number(environ, "SLURM_STEP_ID")
    return "SLURM_PROCID" in environ and step is not None and step < _LARGEST_STEP


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None
