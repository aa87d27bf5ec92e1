# RANKS
"""Data parallel by hand: each rank sends the tenth of its gradient that is largest, and keeps the rest for later."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
rest = [torch.zeros_like(p) for p in model.parameters()]
chance = torch.Generator().manual_seed(rank)
losses = []
for step in range(40):
    at = torch.randint(0, 256, (16,), generator=chance) * 2 + rank
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    for p, left in zip(model.parameters(), rest, strict=True):
        whole = (p.grad + left).flatten()
        top = whole.abs().topk(max(1, whole.numel() // 10)).indices
        sent = torch.zeros_like(whole)
        sent[top] = whole[top]
        left.copy_((whole - sent).view_as(left))
        dist.all_reduce(sent)
        p.grad = (sent / world).view_as(p)
    optimizer.step()
    losses.append(loss.item())
if rank == 0:
    tell(model, losses)
dist.destroy_process_group()
