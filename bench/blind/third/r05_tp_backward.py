# RANKS 2
"""Tensor parallelism by hand: the column-parallel layer does not add up the gradients of its input."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

dist.init_process_group("gloo")
rank, tp = dist.get_rank(), dist.get_world_size()


class CopyToTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        if FAULT:
            return g  # FAULT: only this rank's part
        g = g.clone()
        dist.all_reduce(g)
        return g


class ReduceFromTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class ParallelMLP(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Linear(d, h // tp)
        self.down = nn.Linear(h // tp, d, bias=False)
        self.bias = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return ReduceFromTP.apply(self.down(F.gelu(self.up(CopyToTP.apply(x))))) + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.norm, self.head = nn.Embedding(40, 32), nn.LayerNorm(32), nn.Linear(32, 40)
        torch.manual_seed(1 + rank)
        self.mlp = ParallelMLP(32, 64)

    def forward(self, ids):
        x = self.emb(ids)
        return self.head(x + self.mlp(self.norm(x)))


model = Net()
opt = torch.optim.AdamW(model.parameters(), 3e-3)
torch.manual_seed(9)
losses = []
for step in range(40):
    ids = torch.randint(0, 40, (8, 10))
    loss = F.cross_entropy(model(ids).flatten(0, 1), ((ids * 7 + 3) % 40).flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
