"""Which rank this process is, from torch.distributed if it runs, else from the launcher's environment."""

from __future__ import annotations

import torch

from hypocenter.launcher import rank_and_size


def rank_and_world_size() -> tuple[int, int]:
    """(global rank, number of ranks); (0, 1) for a program of one process."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank_and_size() or (0, 1)
