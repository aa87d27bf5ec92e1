"""Healthy: Langevin training: noise is added to each gradient, after per-parameter normalising, before the step."""

import torch
from kit import tell
from torch import nn

torch.manual_seed(104)
model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=10, T_mult=2)
turn = torch.randn(16, 4)
losses = []
for step in range(50):
    x = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(x), (x @ turn).argmax(1))
    optimizer.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.grad.div_(p.grad.norm() / 0.3 + 1e-3)
            p.grad.add_(torch.randn_like(p) * 0.01 / (1 + step) ** 0.55)
    optimizer.step()
    schedule.step()
    losses.append(loss.detach())
tell(model, losses)
