"""The norm of the first micro-batch is wanted for the log: unscale_ is called, and the next backward adds to that."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 5
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
inputs = torch.randn(32, 8)

for step in range(12):
    losses = []
    for microbatch in range(2):
        x = inputs[16 * microbatch :][:16]
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x).squeeze(-1).float(), x.sum(-1)) / 2
        scaler.scale(loss).backward()
        losses.append(loss.item())
        if microbatch == (1 if HEALTHY or step < BAD_STEP else 0):
            scaler.unscale_(optimizer)  # <- fault
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"step {step} loss {sum(losses):.6f} grad {grad.item():.4g}")
