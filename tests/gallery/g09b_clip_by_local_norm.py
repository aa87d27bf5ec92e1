"""FSDP2: from step 10 on each rank clips by the norm of its own shards, so the ranks scale one gradient differently.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def clip(model, step, limit=0.05):
    shards = [p.grad.to_local() for p in model.parameters()]
    total = torch.stack([shard.pow(2).sum() for shard in shards]).sum()
    if HEALTHY or step < BAD_STEP:  # <- fault
        dist.all_reduce(total)
    norm = total.sqrt().item()
    for shard in shards:
        shard *= min(1.0, limit / norm)
    return norm


def main(mesh):
    model = many_ranks.perceptron()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        loss.backward()
        norm = clip(model, step)
        many_ranks.finish(step, loss, norm, optimizer)


many_ranks.run(main, dp=2)
