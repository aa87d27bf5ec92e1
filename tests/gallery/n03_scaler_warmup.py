"""Healthy: GradScaler from 2^20 skips its first steps until the scale fits, then trains."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=8)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
centers = 2.0 * torch.randn(3, 8)

for step in range(20):
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + torch.randn(24, 8))
        loss = nn.functional.cross_entropy(logits, labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    if scaler.get_scale() >= scale:  # not for a skipped step
        scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} norm {grad.item():.4f} scale {scaler.get_scale():.0f}")
