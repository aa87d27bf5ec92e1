# Gradual unfreezing: a new Adam for each stage, one schedule goes on over all of them by last_epoch
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
W = torch.randn(16, 4)
n = 0
for stage, first in enumerate((4, 2, 0)):
    for i, l in enumerate(m):
        l.requires_grad_(i >= first)
    o = torch.optim.Adam([{"params": [p for p in m.parameters() if p.requires_grad], "initial_lr": 3e-3}], 3e-3)
    s = torch.optim.lr_scheduler.LambdaLR(o, lambda e: max(0.05, 1 - e / 100), last_epoch=n - 1 if n else -1)
    for _ in range(30):
        x = torch.randn(64, 16)
        y = (x @ W).argmax(1)
        loss = F.cross_entropy(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
        s.step()
        n += 1
final(loss, m)
