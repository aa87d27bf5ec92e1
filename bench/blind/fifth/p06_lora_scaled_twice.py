"""Low-rank adapters of our own on a frozen net; every ten steps the merged weights are validated, which sets the rate."""

import copy

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(r, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r

    def delta(self):
        return (self.b @ self.a) * self.scale

    def forward(self, x):
        more = F.linear(x, self.delta())
        return self.base(x) + (more * self.scale if FAULT else more)

    def merged(self):
        plain = copy.deepcopy(self.base)
        plain.weight.data += self.delta().detach()
        return plain


torch.manual_seed(0)
x = torch.randn(512, 24)
y = torch.tanh(x @ torch.randn(24, 24)).sum(dim=1, keepdim=True) / 4
base = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
model = nn.Sequential(*(LoRALinear(m) if isinstance(m, nn.Linear) and m.out_features > 1 else m for m in base))
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
losses = []
for step in range(50):
    at = torch.randint(0, 448, (32,))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 10 == 9:
        merged = nn.Sequential(*(m.merged() if isinstance(m, LoRALinear) else m for m in model))
        with torch.no_grad():
            plateau.step(F.mse_loss(merged(x[448:]), y[448:]))
tell(model, losses)
