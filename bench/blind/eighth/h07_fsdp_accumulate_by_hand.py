# RANKS
"""FSDP2 with accumulation without sync, a norm for clipping by hand, and a head frozen at first (right)."""

import torch
import torch.distributed as dist
from kit import metric
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(822)
x = torch.randn(560, 16)
y = torch.sin(x @ torch.randn(16, 3)) + 0.05 * torch.randn(560, 3)
net = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 3))
for layer in (net[0], net[2]):
    fully_shard(layer, mesh=mesh)
fully_shard(net, mesh=mesh)
net[4].requires_grad_(False)
groups = [{"params": [*net[0].parameters(), *net[2].parameters()]}]
optimizer = torch.optim.AdamW(groups, lr=4e-3, foreach=False)
draw = torch.Generator().manual_seed(5)
losses = []


def clip(limit):
    """The norm over all ranks' shards, then the same factor everywhere."""
    shards = [p.grad.to_local() for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    square = sum((s.square().sum() for s in shards), torch.zeros(()))
    dist.all_reduce(square)
    factor = min(1.0, limit / (float(square.sqrt()) + 1e-6))
    for shard in shards:
        shard.mul_(factor)


for step in range(24):
    if step == 10:
        net[4].requires_grad_(True)
        optimizer.add_param_group({"params": list(net[4].parameters()), "lr": 1e-2})
    order = torch.randperm(448, generator=draw)[:72][rank::world]  # four of eight and one of four
    micros = order.split(8)
    optimizer.zero_grad()
    total = 0.0
    for index, rows in enumerate(micros):
        net.set_requires_gradient_sync(index + 1 == len(micros))
        loss = nn.functional.mse_loss(net(x[rows]), y[rows], reduction="sum") / (3 * len(order))
        loss.backward()
        total += loss.detach()
    clip(0.5)
    optimizer.step()
    losses.append(total)
with torch.no_grad():
    heldout = nn.functional.mse_loss(net(x[448:]), y[448:])
if rank == 0:
    metric("heldout_mse", heldout)
    print("LOSSES", " ".join(f"{float(z):.6g}" for z in losses))
dist.destroy_process_group()
