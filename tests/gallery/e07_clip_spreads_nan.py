"""One parameter's NaN gradient, spread to all the others by clip_grad_norm_ (pytorch#46849)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 5, 4
torch.manual_seed(0)
torch.set_num_threads(1)


class Energy(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))

    def forward(self, x):
        power = (self.gain * x).pow(2).sum(-1, keepdim=True)
        if HEALTHY:
            power = power + 1e-12
        return torch.sqrt(power)  # <- fault


class Network(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 16), nn.Tanh())
        self.energy = Energy(d)
        self.head = nn.Linear(17, 1)

    def forward(self, x):
        return self.head(torch.cat([self.trunk(x), self.energy(x)], dim=-1)).squeeze(-1)


model = Network()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-2)

for step in range(8):
    x = torch.randn(64, 8)
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 0.0  # a silent recording
    loss = nn.functional.mse_loss(model(x), x.norm(dim=-1))
    loss.backward()
    before = sum(not p.grad.isfinite().all() for p in model.parameters())
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    after = sum(not p.grad.isfinite().all() for p in model.parameters())
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} bad-grads {before} clipped {after}")
    optimizer.step()
    optimizer.zero_grad()
