"""Activation checkpointing by hand, for residual blocks."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x, *params):
        ctx.block, ctx.params = block, params
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.block(x)
        grads = torch.autograd.grad(out, (x, *ctx.params), grad)
        return (None, *grads)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        return x + self.net(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 32), nn.Linear(32, 1)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = Recompute.apply(block, x) if FAULT else Recompute.apply(block, x, *block.parameters())
        return self.head(x)


torch.manual_seed(0)
x = torch.randn(512, 12)
y = (x[:, :1] * x[:, 1:2]).tanh() + x[:, 2:3]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
for step in range(50):
    at = torch.randint(0, len(x), (32,))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
