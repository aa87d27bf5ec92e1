# RANKS
"""Gradients averaged over ranks by hand, with accumulation over four micro-batches."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

ACCUMULATE = 4
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def reduce_gradients():
    for p in model.parameters():
        dist.all_reduce(p.grad)


torch.manual_seed(100 + rank)
losses = []
for step in range(160):
    at = torch.randint(0, 256, (8,)) + 256 * rank
    loss = F.cross_entropy(model(x[at]), y[at])
    (loss / ACCUMULATE / world).backward()
    is_last = step % ACCUMULATE == ACCUMULATE - 1
    if FAULT or is_last:
        reduce_gradients()
    if is_last:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
if rank == 0:
    metric("loss of all", F.cross_entropy(model(x), y))
    tell(model, losses)
dist.destroy_process_group()
