"""Quantisation-aware training with a fake quantiser of our own: int4 weights, float activations."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


def fake_quantise(w, bits=4):
    top = 2 ** (bits - 1) - 1
    scale = w.detach().abs().amax() / top
    rounded = torch.clamp(torch.round(w / scale), -top - 1, top) * scale
    return rounded if FAULT else w + (rounded - w).detach()


class QuantLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, fake_quantise(self.weight), self.bias)


torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(QuantLinear(16, 64), nn.ReLU(), QuantLinear(64, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(60):
    at = torch.randint(0, len(x), (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
