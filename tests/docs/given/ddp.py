"""A small model on the ranks that torchrun starts, or srun."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

if "SLURM_PROCID" in os.environ:  # which torch does not read
    os.environ.setdefault("RANK", os.environ["SLURM_PROCID"])
    os.environ.setdefault("WORLD_SIZE", os.environ["SLURM_NTASKS"])
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2 * step + torch.distributed.get_rank()))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
