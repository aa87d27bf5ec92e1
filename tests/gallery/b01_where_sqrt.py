"""The torch.where gradient trap: the square root of negatives is discarded, its gradient is not (pytorch#108618)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 5, 2
torch.manual_seed(0)
torch.set_num_threads(1)


class SignedRoot(nn.Module):
    def forward(self, x):
        if HEALTHY:
            return torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, torch.ones_like(x))), x)
        return torch.where(x > 0, torch.sqrt(x), x)  # <- fault


class Regressor(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.lift = nn.Linear(d, 16)
        self.root = SignedRoot()
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.root(torch.nn.functional.softplus(self.lift(x)) - 0.01)).squeeze(-1)


model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
direction = torch.rand(8)

for step in range(8):
    x = torch.rand(8, 8)
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 40.0 * torch.randn(8)  # softplus of a large negative is 0: below the offset
    loss = nn.functional.huber_loss(model(x), x @ direction)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
