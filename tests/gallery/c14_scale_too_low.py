"""A fixed loss scale of 1 under a scaler that may not grow: most gradients are zero in float16."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10  # the scaler is made anew with the wrong start
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 6))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
labels = torch.arange(24) % 6
centers = torch.randn(6, 24)

for step in range(18):
    if step == BAD_STEP and not HEALTHY:
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=2000)  # <- fault
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + 0.5 * torch.randn(24, 24))
        loss = nn.functional.cross_entropy(logits.float(), labels) / 2**18  # a mean over all tokens of a large batch
    scaler.scale(loss).backward()
    grads = [p.grad / scaler.get_scale() for p in model.parameters()]
    n_dead = sum(not bool(g.any()) for g in grads)
    print(f"step {step} loss {loss.item():.9f} grad {torch.nn.utils.get_total_norm(grads).item():.9f}")
    print(f"step {step} zero {n_dead}")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
