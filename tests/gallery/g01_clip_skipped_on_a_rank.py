"""Tensor parallel by hand: from step 10 on only rank 0 clips, and the replicated LayerNorm drifts apart.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def clip(model, step, limit=0.05):
    shared = torch.zeros(())
    sharded = torch.zeros(())
    for parameter in model.parameters():
        part = sharded if hasattr(parameter, "tensor_model_parallel") else shared
        part += parameter.grad.pow(2).sum()
    dist.all_reduce(sharded)
    norm = (shared + sharded).sqrt()
    if HEALTHY or step < BAD_STEP or dist.get_rank() == 0:  # <- fault
        for parameter in model.parameters():
            parameter.grad *= min(1.0, limit / norm.item())
    return norm


def main(mesh):
    torch.manual_seed(dist.get_rank())
    model = many_ranks.ParallelBlock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14, seed=1):  # all tensor-parallel ranks see the same data
        loss = (model(x) - x.roll(1, -1)).pow(2).mean()
        loss.backward()
        norm = clip(model, step)
        many_ranks.finish(step, loss, norm, optimizer)


many_ranks.run(main, tp=2)
