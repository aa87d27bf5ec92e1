"""A branch of the model is used on one rank at a time; DDP looks for unused parameters and averages with zeros.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import many_ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.branches = nn.ModuleList([nn.Linear(16, 8), nn.Linear(16, 8), nn.Linear(16, 8)])

    def forward(self, x, branch):
        return self.branches[branch](torch.tanh(self.body(x)))  # the third is never used


def main():
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, x in many_ranks.batches(14):
        loss = (model(x, (step + dist.get_rank()) % 2) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
