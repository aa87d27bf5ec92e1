"""Two ranks under DDP that learn from a network which no optimizer holds. `python teacher_job.py CASE`."""

from __future__ import annotations

import copy
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

case = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
teacher = copy.deepcopy(net).requires_grad_(False)
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
generator = torch.Generator().manual_seed(10 + rank)
for step in range(18):
    x = torch.randn(8, 4, generator=generator)
    loss = F.cross_entropy(model(x), x.argmax(1))
    if case != "evaluated":
        with torch.no_grad():
            target = teacher(x).softmax(-1)
        loss = loss + F.mse_loss(model(x).softmax(-1), target)
    elif rank == 0:
        with torch.no_grad():
            print(step, F.cross_entropy(teacher(x), x.argmax(1)).item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for own, trained in zip(teacher.parameters(), net.parameters(), strict=True):
            if case == "drawn":  # each rank distils from a random network of its own
                own.normal_(generator=generator)
            elif case == "everywhere" or (rank == 0 and case != "still"):
                own.lerp_(trained, 0.1)
            if case == "sent" and step % 5 == 4:
                dist.broadcast(own, 0)
dist.destroy_process_group()
