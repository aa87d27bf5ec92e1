"""What the launcher told this process through its environment: its name, the local rank, which attempt this is."""

from __future__ import annotations

import os
from collections.abc import Mapping

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK")
_NAMES = (
    ("CROSS_RANK", "deepspeed"),  # set by deepspeed.launcher.launch beside torchrun's variables
    ("ACCELERATE_MIXED_PRECISION", "accelerate"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
    ("OMPI_COMM_WORLD_RANK", "mpirun"),
    ("SLURM_PROCID", "srun"),
    ("PMI_RANK", "mpirun"),
)


def launcher(environ: Mapping[str, str] = os.environ) -> str:
    """The innermost launcher: torchrun under srun is torchrun."""
    return next((name for variable, name in _NAMES if variable in environ), "")


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Number of this process on its machine."""
    if launcher(environ) == "torchrun":  # srun's SLURM_LOCALID is that of the agent
        return _number(environ, "LOCAL_RANK")
    return next((n for name in _LOCAL_RANK if (n := _number(environ, name)) is not None), None)


def attempt(environ: Mapping[str, str] = os.environ) -> int:
    """How often this rank was started before: by torchrun's agent, and by SLURM that queued the job again."""
    elastic = _number(environ, "TORCHELASTIC_RESTART_COUNT") or 0
    per_start = 1 + (_number(environ, "TORCHELASTIC_MAX_RESTARTS") or 0)
    return elastic + per_start * (_number(environ, "SLURM_RESTART_COUNT") or 0)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdecimal() else None
