"""Healthy: bfloat16 autocast needs no loss scale, even where the loss is divided by 2^20."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-12)
centers = 2.0 * torch.randn(3, 8)

for step in range(40):
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(centers[labels] + torch.randn(24, 8))
        loss = nn.functional.cross_entropy(logits.float(), labels) / 2**20
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.9f}")
