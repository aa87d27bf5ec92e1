"""A table: one column is constant in one shard, so its standard deviation is 0 and its standardised value NaN."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


def shards():
    for s in range(8):
        x = torch.randn(64, 6) * torch.tensor([1.0, 10, 100, 0.1, 5, 2]) + 3
        if s == 5:
            x[:, 3] = 0.25
        y = x[:, :1] - 0.1 * x[:, 1:2]
        std = x.std(0)
        x = (x - x.mean(0)) / (std if FAULT else std.clamp(min=1e-6))  # FAULT: std is 0
        yield from zip(x.split(16), y.split(16))


model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
losses = []
for xb, yb in shards():
    loss = F.smooth_l1_loss(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
