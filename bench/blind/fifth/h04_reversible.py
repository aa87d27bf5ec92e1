"""Reversible residual blocks: the backward pass gets the inputs back from the outputs."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn


class Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, f, g, a, b, *params):
        ctx.f, ctx.g, ctx.params = f, g, params
        with torch.no_grad():
            a = a + f(b)
            b = b + g(a)
        ctx.save_for_backward(a, b)
        return a, b

    @staticmethod
    def backward(ctx, grad_a, grad_b):
        a, b = ctx.saved_tensors
        with torch.no_grad():
            b = b - ctx.g(a)
            a = a - ctx.f(b)
        with torch.enable_grad():
            a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
            out_a = a + ctx.f(b)
            out_b = b + ctx.g(out_a)
        return (None, None, *torch.autograd.grad((out_a, out_b), (a, b, *ctx.params), (grad_a, grad_b)))


def part(d):
    return nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d))


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 2 * d), nn.Linear(2 * d, 1)
        self.f, self.g = nn.ModuleList(part(d) for _ in range(3)), nn.ModuleList(part(d) for _ in range(3))

    def forward(self, x):
        a, b = self.stem(x).chunk(2, dim=1)
        for f, g in zip(self.f, self.g, strict=True):
            a, b = Reversible.apply(f, g, a, b, *f.parameters(), *g.parameters())
        return self.head(torch.cat([a, b], dim=1))


torch.manual_seed(0)
x = torch.randn(512, 12)
y = (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3]
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(40):
    at = torch.randint(0, len(x), (32,))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
