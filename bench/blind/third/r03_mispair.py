# RANKS 2
"""Gradients reduced by hand where they are not None: the ranks use other heads, so other heads' gradients meet."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)


class MultiTask(nn.Module):
    def __init__(self, tasks=3):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 32), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(32, 2) for _ in range(tasks))

    def forward(self, x, task):
        return self.heads[task](self.trunk(x))


def sync_gradients(model):
    for p in model.parameters():
        if p.grad is None:
            if FAULT:
                continue  # FAULT: the other rank may have one here
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world


model = MultiTask()
opt = torch.optim.Adam(model.parameters(), 3e-3)
W = torch.randn(3, 12, 2)
torch.manual_seed(10 + rank)
losses = []
for step in range(40):
    task = (step + rank) % 3
    x = torch.randn(16, 12)
    loss = F.mse_loss(model(x, task), torch.tanh(x @ W[task]))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    sync_gradients(model)
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
