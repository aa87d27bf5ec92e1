"""Healthy: float32 weights under bfloat16 autocast, AdamW with a small learning rate after a warm-up."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Embedding(32, 16), nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=10)

for step in range(40):
    ids = torch.randint(0, 32, (8, 8))
    with torch.autocast("cpu", torch.bfloat16):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(1, 1).flatten())
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
