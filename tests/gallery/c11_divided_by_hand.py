"""Gradients are divided by the loss scale by hand, for the log, and once more by scaler.step."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 2
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
inputs = torch.randn(16, 8)

for step in range(12):
    with torch.autocast("cpu", torch.float16):
        loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), 0.5 * inputs.sum(-1))
    scaler.scale(loss).backward()
    scale = scaler.get_scale()
    if HEALTHY or step < BAD_STEP:
        scaler.unscale_(optimizer)
    else:
        for p in model.parameters():
            p.grad /= scale  # <- fault
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.4g}")
