"""At step 10 one bit of one element of rank 1's gradient flips before the all-reduce: all replicas are equal and wrong.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def flipped(gradient):
    gradient = gradient.clone()
    gradient.view(-1).view(torch.int32)[5] ^= 1 << 30  # <- fault
    return gradient


def main():
    model = DistributedDataParallel(many_ranks.perceptron())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        is_here = step == BAD_STEP and dist.get_rank() == 1 and not HEALTHY
        device = model.module[2].weight.register_hook(flipped) if is_here else None
        loss.backward()
        if device is not None:
            device.remove()
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
