"""A loss scale by hand, with clipping and Adam: fine-tuning a body and a new head."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn

SCALE = 1024.0

torch.manual_seed(0)
x = torch.randn(256, 20)
y = (x[:, :5].sum(dim=1) > 0).long()
body = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
head = nn.Linear(32, 2)
model = nn.ModuleDict({"body": body, "head": head})
optimizer = torch.optim.AdamW([{"params": body.parameters(), "lr": 1e-3}, {"params": head.parameters(), "lr": 3e-3}])
losses = []
for step in range(50):
    at = torch.randint(0, len(x), (16,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(head(body(x[at])).float(), y[at])
    optimizer.zero_grad()
    (loss * SCALE).backward()
    for group in optimizer.param_groups[:1] if FAULT else optimizer.param_groups:
        for p in group["params"]:
            p.grad.div_(SCALE)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
