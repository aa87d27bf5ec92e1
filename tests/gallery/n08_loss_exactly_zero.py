"""Healthy: a hinge loss that reaches exactly zero; from then on every gradient is exactly zero."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for step in range(30):
    sign = torch.tensor([1.0, -1.0]).repeat(8)
    x = 0.5 * torch.randn(16, 4) + sign[:, None]
    loss = torch.relu(1.0 - sign * model(x).squeeze(-1)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.6f}")
