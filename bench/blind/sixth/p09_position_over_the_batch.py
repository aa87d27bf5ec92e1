"""A transformer for series with sinusoids added for the positions, as in the well-known tutorial."""

import math

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class Positions(nn.Module):
    def __init__(self, width, longest=500):
        super().__init__()
        at = torch.arange(longest)[:, None]
        rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        pe = torch.zeros(longest, 1, width) if FAULT else torch.zeros(1, longest, width)
        waves = pe[:, 0] if FAULT else pe[0]
        waves[:, 0::2] = torch.sin(at * rate)
        waves[:, 1::2] = torch.cos(at * rate)
        self.register_buffer("pe", pe)

    def forward(self, x):
        if FAULT:
            return x + self.pe[: x.size(0)]
        return x + self.pe[:, : x.size(1)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 32)
        self.positions = Positions(32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.block(self.positions(self.inp(x))).mean(dim=1))


torch.manual_seed(0)
x = torch.randn(640, 12, 4)
early, late = x[:, :6].mean(dim=1), x[:, 6:].mean(dim=1)
y = ((early - late) @ torch.randn(4, 3)).argmax(dim=1)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(120):
    at = torch.randint(0, 512, (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    metric("accuracy", (model(x[512:]).argmax(1) == y[512:]).float().mean())
tell(model, losses)
