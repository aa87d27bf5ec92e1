"""A loop with a checkpoint whose model nobody has given a seed."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.seed()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(2):
    checkpoint(model, torch.ones(4, 8), use_reentrant=False).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
