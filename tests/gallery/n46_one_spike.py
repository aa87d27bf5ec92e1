"""Healthy: three bad batches in a row make the scaler back off once, the scale grows back in time, nothing repeats."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=10)
centers = 2.0 * torch.randn(3, 8)

for step in range(80):
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + torch.randn(24, 8))
        losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    loss = losses.mean() * (300.0 if 30 <= step < 33 else 0.3)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
