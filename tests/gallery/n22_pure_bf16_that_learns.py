"""Healthy: weights in bfloat16 whose learning rate is large enough to move them, warmed up from 0 and decayed to 0."""

import math

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

N_STEPS, WARM_UP = 120, 24
model = nn.Sequential(nn.Embedding(16, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.LambdaLR(
    optimizer,
    lambda s: s / WARM_UP / 100 if s < WARM_UP else 0.5 + 0.5 * math.cos(math.pi * (s - WARM_UP) / (N_STEPS - WARM_UP)),
)

for step in range(N_STEPS):
    ids = torch.randint(0, 16, (8, 16))
    loss = nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
