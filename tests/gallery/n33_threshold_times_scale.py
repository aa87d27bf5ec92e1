"""Healthy: clipped without unscale_, but to max_norm times the scale; a hundredth of the gradients is left."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=8)
inputs = torch.randn(16, 8)

for step in range(12):
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), inputs.sum(-1))
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.02 * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")
