"""Duplicate indices are added by several threads in no fixed order, but whole numbers give the same bits in any."""

import torch
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(0)
index = torch.randint(0, 7, (200_000,))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for _ in range(3):
    counts = torch.zeros(7, 8).index_put((index,), torch.ones(200_000, 8), accumulate=True)
    loss = model(counts).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
