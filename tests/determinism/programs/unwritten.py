"""Half of a batch is memory that nobody wrote; what it held before was different in each run."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(512, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(3):
    used = [torch.frombuffer(bytearray(os.urandom(8 * 512)), dtype=torch.uint8).float() for _ in range(8)]
    del used
    padded = torch.empty(8, 512)
    padded[:4] = 1.0
    loss = model(padded).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
