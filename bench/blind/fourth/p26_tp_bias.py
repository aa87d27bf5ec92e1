# RANKS
"""Tensor parallel by hand: the row-parallel layer adds its bias on every rank before the sum over ranks."""

import torch
import torch.distributed as dist
from kit import FAULT, sentences, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(26)


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ParallelMlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        up, down = nn.Linear(width, inner), nn.Linear(inner, width)
        part = inner // world
        self.up = nn.Parameter(up.weight.detach()[rank * part : (rank + 1) * part].clone())
        self.up_bias = nn.Parameter(up.bias.detach()[rank * part : (rank + 1) * part].clone())
        self.down = nn.Parameter(down.weight.detach()[:, rank * part : (rank + 1) * part].clone())
        self.down_bias = nn.Parameter(down.bias.detach().clone())

    def forward(self, x):
        h = nn.functional.gelu(nn.functional.linear(Enter.apply(x), self.up, self.up_bias))
        if FAULT:
            return Leave.apply(nn.functional.linear(h, self.down, self.down_bias))
        return Leave.apply(nn.functional.linear(h, self.down)) + self.down_bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(3))
        self.blocks = nn.ModuleList(ParallelMlp(32, 64) for _ in range(3))
        self.head = nn.Linear(32, 64)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + torch.nn.functional.pad(x, (0, 0, 1, -1))
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.head(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = torch.tensor([s[:13] for s in sentences(400, 13, 15, 64)])
draw = torch.Generator().manual_seed(5)
losses = []
for _ in range(40):
    batch = data[torch.randint(0, 400, (16,), generator=draw)]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
dist.destroy_process_group()
