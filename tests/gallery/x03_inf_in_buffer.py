"""Infinity in a buffer: a feature that is constant in a calibration window has std 0, its inverse is inf."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 3
torch.manual_seed(0)
torch.set_num_threads(1)


class Standardize(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("inverse_std", torch.ones(d))

    def calibrate(self, window):
        self.mean.copy_(window.mean(0))
        self.inverse_std.copy_(1.0 / window.std(0))  # <- fault

    def forward(self, x):
        return (x - self.mean) * self.inverse_std


class Regressor(nn.Module):
    def __init__(self, d=6):
        super().__init__()
        self.standardize = Standardize(d)
        self.hidden = nn.Linear(d, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.standardize(x)))).squeeze(-1)


model = Regressor()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
direction = torch.randn(6)

for step in range(6):
    x = torch.randn(16, 6)
    if step == BAD_STEP:
        window = torch.randn(64, 6)
        if not HEALTHY:
            window[:, 2] = 1.0  # a stuck sensor
        model.standardize.calibrate(window)
        x[0, 2] = 1.0
    loss = nn.functional.mse_loss(model(x), x @ direction)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
