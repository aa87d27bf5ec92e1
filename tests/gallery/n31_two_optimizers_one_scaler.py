"""Healthy: two optimizers share a scaler, clip after unscale_ and accumulate; the scale grows every fourth step."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

body, head = nn.Sequential(nn.Linear(8, 32), nn.GELU()), nn.Linear(32, 1)
model = nn.Sequential(body, head)
optimizers = [torch.optim.SGD(body.parameters(), lr=0.02), torch.optim.AdamW(head.parameters(), lr=1e-2)]
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=4)
inputs = torch.randn(32, 8)

for step in range(12):
    total = 0.0
    for x in inputs.split(16):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x).squeeze(-1).float(), x.sum(-1)) / 2
        scaler.scale(loss).backward()
        total += loss.item()
    for optimizer, part in zip(optimizers, (body, head), strict=True):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(part.parameters(), 1.0)
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    print(f"step {step} loss {total:.6f} scale {scaler.get_scale():.0f}")
