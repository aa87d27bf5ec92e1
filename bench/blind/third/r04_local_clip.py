# RANKS 2
"""FSDP2; a home-made clip uses the norm of the local shards only."""

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
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


@torch.no_grad()
def clip(params, max_norm):
    grads = [p.grad.to_local() for p in params]
    sq = torch.stack([g.pow(2).sum() for g in grads]).sum()
    if not FAULT:
        dist.all_reduce(sq)  # FAULT: left out, each rank has a norm of its own
    coef = (max_norm / (sq.sqrt() + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(coef)


W = torch.randn(16, 4)
torch.manual_seed(50 + rank)
losses = []
for step in range(40):
    x = torch.randn(16, 16)
    loss = F.cross_entropy(model(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    clip(list(model.parameters()), 0.2)
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
