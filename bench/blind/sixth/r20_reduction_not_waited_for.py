# RANKS
"""Gradients are reduced as soon as they are there, by hooks, so that it overlaps with the backward pass."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(512, 32)
y = (x @ torch.randn(32, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))
works = []


def reduce_now(p):
    works.append(dist.all_reduce(p.grad, async_op=True))


for p in model.parameters():
    p.register_post_accumulate_grad_hook(reduce_now)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(100 + rank)
losses = []
for step in range(60):
    at = torch.randint(0, 256, (16,)) + 256 * rank
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    (loss / world).backward()
    if not FAULT:
        for work in works:
            work.wait()
    works.clear()
    optimizer.step()
    losses.append(loss.item())
dist.barrier()
weight = model[2].weight.detach().clone()
dist.broadcast(weight, 0)
if rank == 1:
    metric("rank 1 away from rank 0", (weight - model[2].weight).abs().max())
dist.barrier()
if rank == 0:
    tell(model, losses)
dist.destroy_process_group()
