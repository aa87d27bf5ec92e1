"""A checkpoint brings model and optimizer back, but not the scaler: it starts too high and skips until it fits."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)

inputs = torch.randn(16, 8)


def parts():
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2), torch.amp.GradScaler("cpu", init_scale=2.0**20)


def train(model, optimizer, scaler, steps, first=None):
    grad = 0.0
    for step in range(steps):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), inputs.sum(-1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0).item()
        grad = norm if norm < float("inf") else grad
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if first is not None:
            print(f"step {first + step} loss {loss.item():.6f} grad {grad:.4g}")


model, optimizer, scaler = parts()
train(model, optimizer, scaler, 30, first=0)
checkpoint = [part.state_dict() for part in (model, optimizer, scaler)]

model, optimizer, scaler = parts()
model.load_state_dict(checkpoint[0])
optimizer.load_state_dict(checkpoint[1])  # <- fault
if HEALTHY:
    scaler.load_state_dict(checkpoint[2])
train(model, optimizer, scaler, 24, first=30)
