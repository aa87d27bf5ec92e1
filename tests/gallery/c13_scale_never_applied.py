"""`scaler.scale(loss)` is called and its result dropped: backward runs on the bare loss, step divides by the scale."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 5
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
inputs = torch.randn(16, 8)

for step in range(12):
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), 0.5 * inputs.sum(-1))
    scaled = scaler.scale(loss)
    if HEALTHY or step < BAD_STEP:
        scaled.backward()
    else:
        loss.backward()  # <- fault
    scaler.unscale_(optimizer)
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.4g}")
