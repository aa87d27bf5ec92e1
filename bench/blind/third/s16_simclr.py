"""SimCLR: the features are normalised over the batch instead of over the feature axis."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
enc = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16))
opt = torch.optim.AdamW(enc.parameters(), 1e-3)


def nt_xent(a, b, tau=0.2):
    z = F.normalize(torch.cat([a, b]), dim=0 if FAULT else -1)  # FAULT: dim 0
    sim = z @ z.T / tau
    sim.fill_diagonal_(-1e9)
    n = len(a)
    return F.cross_entropy(sim, torch.arange(2 * n).roll(n))


losses = []
for step in range(50):
    x = torch.randn(24, 20)
    loss = nt_xent(enc(x + 0.1 * torch.randn_like(x)), enc(x + 0.1 * torch.randn_like(x)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, enc)
