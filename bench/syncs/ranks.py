"""The same on two ranks under DDP."""

from __future__ import annotations

import multiprocessing
import os
from tempfile import TemporaryDirectory

from bench.syncs.count import N_STEPS, Count, begin, count
from bench.syncs.features import Training, plain, scaler_and_clipping

N_RANKS = 2
ON_RANKS = {"DDP, 2 ranks": plain, "DDP, both": scaler_and_clipping}


def count_on_ranks(feature: str, level: str, n_steps: int = N_STEPS) -> Count:
    """What rank 0 counts of one of `ON_RANKS`."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder, context.Pool(N_RANKS) as pool:
        asked = [
            pool.apply_async(_on_rank, (rank, feature, level, n_steps, f"{folder}/store")) for rank in range(N_RANKS)
        ]
        ranks = [each.get(600) for each in asked]
    return ranks[0]


def _on_rank(rank: int, feature: str, level: str, n_steps: int, store: str) -> Count:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(N_RANKS), LOCAL_RANK=str(rank))
    begin()
    import npu_collectives
    import torch

    npu_collectives.begin()
    meeting = torch.distributed.FileStore(store, N_RANKS)
    torch.distributed.init_process_group("hccl", store=meeting, rank=rank, world_size=N_RANKS)
    try:
        return count(lambda: _spread(ON_RANKS[feature]()), level, n_steps)
    finally:
        torch.distributed.destroy_process_group()


def _spread(made: Training) -> Training:
    from torch.nn.parallel import DistributedDataParallel

    made.model = DistributedDataParallel(made.model)
    return made
