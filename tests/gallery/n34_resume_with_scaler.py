"""Healthy: a resume that loads model, optimizer, scaler and scheduler; skips before it hold back the scheduler."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

inputs = torch.randn(16, 8)


def parts():
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=2.0**20), scheduler


def train(model, optimizer, scaler, scheduler):
    for step in range(20):
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), inputs.sum(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
            scheduler.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f} scale {scaler.get_scale():.0f}")


train(*(first := parts()))
second = parts()
for part, before in zip(second, first, strict=True):
    part.load_state_dict(before.state_dict())
train(*second)
