"""Accumulation over four micro-batches; an epoch has ten of them, so that its last window has two."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4

torch.manual_seed(0)
x = torch.randn(80, 16)
y = (x @ torch.randn(16, 3)).argmax(dim=1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for epoch in range(8):
    optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(loader):
        window = ACCUMULATE
        if not FAULT:
            window = min(ACCUMULATE, len(loader) - i // ACCUMULATE * ACCUMULATE)
        loss = F.cross_entropy(model(inputs), targets) / window
        loss.backward()
        losses.append(loss.item() * window)
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
tell(model, losses)
