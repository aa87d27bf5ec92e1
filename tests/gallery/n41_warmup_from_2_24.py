"""Healthy: GradScaler from 2^24 skips its first steps in a row until the scale fits, then trains."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
centers = 2.0 * torch.randn(3, 8)

for step in range(40):
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + torch.randn(24, 8))
        loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
