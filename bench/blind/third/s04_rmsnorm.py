"""A fused RMSNorm whose backward leaves out the term of the norm."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class FusedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, eps):
        rstd = (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(x, w, rstd)
        return x * rstd * w

    @staticmethod
    def backward(ctx, dy):
        x, w, rstd = ctx.saved_tensors
        xhat = x * rstd
        dxhat = dy * w
        if FAULT:
            dx = dxhat * rstd  # FAULT: no projection term
        else:
            dx = rstd * (dxhat - xhat * (dxhat * xhat).mean(-1, keepdim=True))
        return dx, (dy * xhat).flatten(0, -2).sum(0), None


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return FusedRMSNorm.apply(x, self.weight, 1e-6)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = RMSNorm(d)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.down(F.silu(self.up(self.norm(x))))


model = nn.Sequential(nn.Embedding(50, 32), Block(32), Block(32), RMSNorm(32), nn.Linear(32, 50))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
losses = []
for step in range(40):
    ids = torch.randint(0, 50, (8, 17))
    ids[:, 1:] = (ids[:, :1] * 3 + torch.arange(1, 17)) % 50
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
