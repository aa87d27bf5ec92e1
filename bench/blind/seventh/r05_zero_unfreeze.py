# RANKS
"""Hand-written ZeRO-1: each parameter has an owner that keeps its moments, updates it, and broadcasts it. The trunk thaws later."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(105)
x = torch.randn(1280, 18)
y = (torch.relu(x @ torch.randn(18, 10)) @ torch.randn(10, 5)).argmax(dim=1)


class ShardedAdamW:
    def __init__(self, parameters, lr):
        self.lr = lr
        self.owners = {}
        self.parameters = []
        self.inner = None
        self.add(parameters)

    def add(self, parameters):
        parameters = list(parameters)
        for p in parameters:
            self.owners[p] = len(self.owners) % world
        self.parameters += parameters
        mine = [p for p in parameters if self.owners[p] == rank]
        if self.inner is None:
            self.inner = torch.optim.AdamW(mine, lr=self.lr)
            self.schedule = [(p, self.owners[p]) for p in self.parameters]
        elif mine:
            self.inner.add_param_group({"params": mine, "lr": self.lr / 2})
        if not FAULT:
            self.schedule = [(p, self.owners[p]) for p in self.parameters]

    def step(self):
        for p in self.parameters:
            dist.all_reduce(p.grad)
            p.grad /= world
        self.inner.step()
        with torch.no_grad():
            for p, owner in self.schedule:
                dist.broadcast(p.data, src=owner)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


trunk = nn.Sequential(nn.Linear(18, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
model = nn.Sequential(trunk, head)
trunk.requires_grad_(False)
optimizer = ShardedAdamW(head.parameters(), lr=4e-3)
losses = []
for step in range(60):
    if step == 20:
        trunk.requires_grad_(True)
        optimizer.add(trunk.parameters())
    start = (step * 64 + rank * 32) % 1152
    loss = nn.functional.cross_entropy(model(x[start : start + 32]), y[start : start + 32])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

with torch.no_grad():
    value = nn.functional.cross_entropy(model(x[1152:]), y[1152:])
if rank == 0:
    metric("heldout_loss", value)
    tell(model, losses)
dist.destroy_process_group()
