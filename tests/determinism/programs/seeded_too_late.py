"""The order of the samples is drawn before the seed is set: an unseeded randperm."""

import torch
from torch import nn

order = torch.randperm(32)

torch.manual_seed(0)
data, labels = torch.randn(32, 8), torch.randn(32, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(4):
    batch = order[8 * step : 8 * step + 8]
    loss = nn.functional.mse_loss(model(data[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
