# RANKS 2
"""FSDP2; the optimizer is made before fully_shard and holds parameters that no longer belong to the model."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from c import FAULT, finish

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
if FAULT:
    opt = torch.optim.AdamW(model.parameters(), 2e-3)  # FAULT: before fully_shard
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
if not FAULT:
    opt = torch.optim.AdamW(model.parameters(), 2e-3)
W = torch.randn(16, 4)
torch.manual_seed(50 + rank)
losses = []
for step in range(40):
    x = torch.randn(16, 16)
    loss = F.cross_entropy(model(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
