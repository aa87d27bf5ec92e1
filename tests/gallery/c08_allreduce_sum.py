"""float16 gradients fit on each of two ranks; the all-reduce adds them before anybody divides, and the sum does not.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # a batch of large targets


def average(parameters, n_ranks):
    for parameter in parameters:
        if HEALTHY:
            parameter.grad /= n_ranks
        dist.all_reduce(parameter.grad)  # <- fault
        if not HEALTHY:
            parameter.grad /= n_ranks


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for step, x in many_ranks.batches(7, n_rows=64, n_columns=4):
        x = x.half()
        target = x.float().sum(-1) + (2e4 if step == BAD_STEP else 0.0)
        loss = (model(x).squeeze(-1).float() - target).pow(2).mean()
        loss.backward()
        average(model.parameters(), dist.get_world_size())
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
