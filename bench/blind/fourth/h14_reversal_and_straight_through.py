"""Healthy: a gradient reversal layer for a domain head, and a quantizer with a straight-through gradient and a codebook of its own."""

import torch
from kit import tell
from torch import nn

torch.manual_seed(114)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 16))
        self.codes = nn.Embedding(24, 16)
        self.label, self.domain = nn.Linear(16, 3), nn.Linear(16, 2)

    def forward(self, x, strength):
        h = self.body(x)
        near = torch.cdist(h, self.codes.weight).argmin(1)
        code = self.codes(near)
        commit = (code - h.detach()).square().mean() + 0.25 * (h - code.detach()).square().mean()
        passed = h + (code - h).detach()
        return self.label(passed), self.domain(Reverse.apply(h, strength)), commit


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
turn = torch.randn(10, 3)
losses = []
for step in range(50):
    x = torch.randn(40, 10)
    y = (x @ turn).argmax(1)
    where = torch.arange(40) % 2
    x = x + where[:, None] * 0.5
    label, domain, commit = model(x, 0.5 * step / 50)
    loss = (
        nn.functional.cross_entropy(label[where == 0], y[where == 0])
        + nn.functional.cross_entropy(domain, where)
        + commit
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
tell(model, losses)
