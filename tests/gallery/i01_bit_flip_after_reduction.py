"""At step 10 one bit of one element of rank 1's gradient flips after the all-reduce: the replicas split.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def main():
    model = DistributedDataParallel(many_ranks.perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        loss.backward()
        if step == BAD_STEP and dist.get_rank() == 1 and not HEALTHY:
            bits = model.module[0].weight.grad.view(-1).view(torch.int32)
            bits[5] ^= 1 << 26  # <- fault
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
