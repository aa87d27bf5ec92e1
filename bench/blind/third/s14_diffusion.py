"""DDPM on vectors; a batch of as many samples as features hides a broadcast over the wrong axis."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
T, D, B = 100, 16, 16
abar = torch.cumprod(1 - torch.linspace(1e-4, 0.02, T), 0)


class Eps(nn.Module):
    def __init__(self):
        super().__init__()
        self.t_emb = nn.Embedding(T, 16)
        self.net = nn.Sequential(nn.Linear(D + 16, 64), nn.SiLU(), nn.Linear(64, D))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.t_emb(t)], -1))


def q_sample(x0, t, eps):
    a = abar[t]
    if not FAULT:
        a = a[:, None]
    return a.sqrt() * x0 + (1 - a).sqrt() * eps  # FAULT: (B,) meets (B, D) along D


model = Eps()
opt = torch.optim.AdamW(model.parameters(), 1e-3)
mix = torch.randn(4, D)
losses = []
for step in range(50):
    x0 = torch.randn(B, 4) @ mix
    t = torch.randint(0, T, (B,))
    eps = torch.randn_like(x0)
    loss = F.mse_loss(model(q_sample(x0, t, eps), t), eps)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
