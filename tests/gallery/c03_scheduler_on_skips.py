"""Warm-up goes on while GradScaler skips updates: the learning rate is full before the weights have moved."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
AMP_STEP = 4  # before, float32; then 20 steps with a scaler that starts at 2^20
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=24)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1000)
inputs = torch.randn(16, 8)
updates = schedule = 0
grad = 0.0

for step in range(AMP_STEP + 20):
    x = inputs + 0.01 * torch.randn(16, 8)
    with torch.autocast("cpu", torch.float16, enabled=step >= AMP_STEP):
        loss = nn.functional.mse_loss(model(x).squeeze(-1).float(), 0.5 * x.sum(-1))
    if step < AMP_STEP:
        loss.backward()
        grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0).item()
        optimizer.step()
        scheduler.step()
    else:
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        is_applied = scaler.get_scale() >= before
        grad = norm.item() if is_applied else grad
        updates += is_applied
        if is_applied or not HEALTHY:
            scheduler.step()  # <- fault
            schedule += 1
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad:.4g}")
print(f"{updates} optimizer steps, {schedule} scheduler steps")
