"""A loop for one process or for many, under DDP.

    python ranked.py [--batch B] [--fault NAME]

Faults: unwrapped (nobody averages gradients), summed (averaged by hand, and not divided), shared (each rank takes the
same samples), shuffled (each number of ranks has another order).
"""

import argparse
import os

import torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--fault", default="")
given = parser.parse_args()
rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
called: nn.Module = model
if world_size > 1:
    distributed.init_process_group("gloo")
    if given.fault not in ("unwrapped", "summed"):
        called = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-1)
inputs, labels = torch.randn(64, 8), torch.randint(0, 4, (64,))
if given.fault == "shuffled":
    order = torch.randperm(64, generator=torch.Generator().manual_seed(world_size))
    inputs, labels = inputs[order], labels[order]
for start in range(0, 64, given.batch * world_size):
    own = start + (0 if given.fault == "shared" else rank * given.batch)
    rows = slice(own, own + given.batch)
    nn.functional.cross_entropy(called(inputs[rows]), labels[rows]).backward()
    if given.fault == "summed" and world_size > 1:
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
if world_size > 1:
    distributed.destroy_process_group()
