"""A branch of the model is used on one rank at a time; DDP looks for unused parameters and averages with zeros.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc

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
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x, (step + dist.get_rank()) % 2) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
