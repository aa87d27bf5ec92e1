"""Healthy: a short growth_interval makes the scaler try a higher scale, and skip, every few steps for 300 steps."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=6)
centers = 2.0 * torch.randn(3, 8)
n_skipped = 0

for step in range(300):
    labels = torch.arange(24) % 3
    noise = torch.randn(24, 8) * (0.5 + 2.0 * torch.rand(1))  # gradients go up and down
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + noise)
        loss = nn.functional.cross_entropy(logits.float(), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    n_skipped += scaler.get_scale() < before
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
print(f"{n_skipped} skipped")
