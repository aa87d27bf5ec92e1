"""Healthy: bfloat16 with a disabled scaler; the loss is scaled by a constant and the gradients are divided by it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
inputs = torch.randn(16, 8)

for step in range(12):
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), inputs.sum(-1))
    scaler.scale(4096.0 * loss).backward()
    for p in model.parameters():
        p.grad /= 4096.0
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
