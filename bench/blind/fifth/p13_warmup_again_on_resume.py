"""Training that goes on from a checkpoint: the first process writes it after 30 steps, the second goes on to 60."""

import os

import torch
import torch.nn.functional as F
from kit import FAULT, OUT, tell
from torch import nn

PATH = os.path.join(OUT, "last.pt")


def rate(step):
    return min(1.0, (step + 1) / 10) * (1 - step / 80)


torch.manual_seed(0)
x = torch.randn(512, 16)
y = torch.tanh(x @ torch.randn(16, 2))
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
begin, end = 0, 30
if os.path.exists(PATH):
    saved = torch.load(PATH)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    if not FAULT:
        scheduler.load_state_dict(saved["scheduler"])
    begin, end = saved["step"], 60
losses = []
for step in range(begin, end):
    at = torch.randint(0, len(x), (32,), generator=torch.Generator().manual_seed(step))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
if end == 30:
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": end}
    torch.save(saved | {"scheduler": scheduler.state_dict()}, PATH)
    print("checkpoint written")
else:
    tell(model, losses)
