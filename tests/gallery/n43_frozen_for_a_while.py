"""Healthy: the encoder is trained, then for 20 steps nothing arrives (a stage without labels), then both parts."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=8)
centers = 2.0 * torch.randn(3, 8)

for step in range(60):
    has_labels = 0.0 if 20 <= step < 40 else 1.0
    model[0].requires_grad_(step < 20 or step >= 50)
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + torch.randn(24, 8))
        loss = has_labels * nn.functional.cross_entropy(logits.float(), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
