"""Triplet loss with a hand-written distance: two equal samples give sqrt'(0) * 0 = NaN."""

import torch
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
enc = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 8))
opt = torch.optim.Adam(enc.parameters(), 1e-3)


def distance(a, b):
    sq = (a - b).pow(2).sum(-1)
    return sq.sqrt() if FAULT else (sq + 1e-12).sqrt()  # FAULT: derivative at 0


losses = []
for step in range(30):
    a = torch.randn(16, 10)
    p = a + 0.1 * torch.randn(16, 10)
    if step == 9:
        p[4] = a[4]
    n = torch.randn(16, 10)
    loss = torch.relu(distance(enc(a), enc(p)) - distance(enc(a), enc(n)) + 0.5).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, enc)
