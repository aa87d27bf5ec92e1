# RANKS
"""Optimizer states split over ranks by hand: each rank steps its own parameters and sends them to the others."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4, bias=False))
parameters = list(model.parameters())
each = len(parameters) // world if FAULT else -(-len(parameters) // world)
owned = [parameters[r * each : (r + 1) * each] for r in range(world)]
optimizer = torch.optim.AdamW(owned[rank], lr=3e-3)
torch.manual_seed(100 + rank)
losses = []
for step in range(80):
    at = torch.randint(0, 256, (16,)) + 256 * rank
    loss = F.cross_entropy(model(x[at]), y[at])
    model.zero_grad()
    loss.backward()
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    with torch.no_grad():
        for owner, theirs in enumerate(owned):
            for p in theirs:
                dist.broadcast(p, owner)
    losses.append(loss.item())
if rank == 0:
    metric("loss of all", F.cross_entropy(model(x), y))
    tell(model, losses)
dist.destroy_process_group()
