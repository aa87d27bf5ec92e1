"""Tensor parallel: at step 10 the loader of rank 0 draws one random number more, and dropout no longer agrees.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def main(mesh):
    torch.manual_seed(dist.get_rank())
    model = many_ranks.ParallelBlock(dropout=0.2)
    torch.manual_seed(2)  # dropout of a replicated activation has to be the same on all ranks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14, seed=1):  # all tensor-parallel ranks see the same data
        if step == BAD_STEP and dist.get_rank() == 0 and not HEALTHY:
            torch.rand(1)  # <- fault
        loss = (model(x) - x.roll(1, -1)).pow(2).mean()
        loss.backward()
        many_ranks.finish(step, loss, model.norm.weight.grad.norm(), optimizer)


many_ranks.run(main, tp=2)
