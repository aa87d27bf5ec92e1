"""A standard deviation as sqrt(E[x^2] - E[x]^2): of a channel far from 0, rounding makes the difference negative."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 5, 3
torch.manual_seed(0)
torch.set_num_threads(1)


class Standardise(nn.Module):
    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        if HEALTHY:
            deviation = torch.sqrt((x - mean).square().mean(-1, keepdim=True) + 1e-2)
        else:
            deviation = torch.sqrt(x.square().mean(-1, keepdim=True) - mean.square() + 1e-2)  # <- fault
        return (x - mean) / deviation


class Network(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.norm = Standardise()
        self.hidden = nn.Linear(d, 32)
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(self.norm(x))))


model = Network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(8):
    x = torch.randn(8, 8)
    target = x[:, :1] - x[:, 1:2]
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 33333.3 + 0.01 * x[BAD_SAMPLE]  # a sensor with an offset
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
