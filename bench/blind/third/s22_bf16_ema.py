"""The EMA copy is kept in bfloat16: with decay 0.9995 it does not move."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 16))
ema = copy.deepcopy(model).requires_grad_(False)
if FAULT:
    ema = ema.bfloat16()  # FAULT: steps below half a unit of bfloat16 are lost
opt = torch.optim.AdamW(model.parameters(), 2e-3)


@torch.no_grad()
def update_ema(decay=0.9995):
    for e, p in zip(ema.parameters(), model.parameters()):
        e.mul_(decay).add_(p.to(e.dtype), alpha=1 - decay)


A = torch.randn(16, 16) / 4
losses = []
for step in range(60):
    x = torch.randn(32, 16)
    loss = F.mse_loss(model(x), torch.tanh(x @ A))
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_ema()
    losses.append(loss.item())
with torch.no_grad():
    print("ema loss", float(F.mse_loss(ema.float()(x), torch.tanh(x @ A))))
finish(losses, model, ema)
