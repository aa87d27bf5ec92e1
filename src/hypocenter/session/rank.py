"""Which rank this process is, from torch.distributed if it runs, else from the launcher's environment."""

from __future__ import annotations

import os

import torch

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, deepspeed
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


def rank_and_world_size() -> tuple[int, int]:
    """(global rank, number of ranks); (0, 1) for a program of one process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    for rank, size in _VARIABLES:
        if os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ.get(size, "1") or 1)
    return 0, 1
