"""LambdaLR is given a learning rate where it wants a factor."""

import math

import torch
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
PEAK, WARM, TOTAL = 3e-3, 5, 50
model = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 1))
opt = torch.optim.AdamW(model.parameters(), lr=PEAK)


def warmup_cosine(step):
    peak = PEAK if FAULT else 1.0  # FAULT: LambdaLR multiplies by the base lr again
    if step < WARM:
        return peak * (step + 1) / WARM
    return peak * 0.5 * (1 + math.cos(math.pi * (step - WARM) / (TOTAL - WARM)))


sched = torch.optim.lr_scheduler.LambdaLR(opt, warmup_cosine)
w = torch.randn(10, 1)
losses = []
for step in range(TOTAL):
    x = torch.randn(32, 10)
    loss = nn.functional.mse_loss(model(x), torch.sin(x @ w))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    losses.append(loss.item())
finish(losses, model)
