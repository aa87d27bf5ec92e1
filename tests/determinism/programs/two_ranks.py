"""Two ranks of FSDP, seeded; with the word `broken`, rank 1 takes its seed from the operating system after that."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
for layer in (model[0], model[3], model):
    fully_shard(layer, mesh=mesh)
if dist.get_rank() == 1 and "broken" in sys.argv:
    torch.seed()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    loss = model(torch.ones(8, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
