"""Healthy: float16 outputs that grow a hundredfold to the size of their targets, where they stay."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
weights = torch.randn(8, 1)

for step in range(160):
    x = torch.randn(64, 8)
    target = 2000.0 * (x @ weights).relu()
    with torch.autocast("cpu", torch.float16):
        out = model(x)
    loss = nn.functional.smooth_l1_loss(out.float(), target) / 2000.0
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} largest {out.abs().max().item():.0f}")
