"""A net with two layers of experts (top one of four) and a loss that balances them."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class Experts(nn.Module):
    def __init__(self, width, n=4):
        super().__init__()
        self.router = nn.Linear(width, n, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(n)
        )

    def forward(self, x):
        p = self.router(x).softmax(dim=-1)
        gate, chosen = p.max(dim=-1)
        load = F.one_hot(chosen, p.shape[-1]).float().mean(dim=0)
        self.balance = p.shape[-1] * (load * p.mean(dim=0)).sum()
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            at = (chosen == i).nonzero().squeeze(1)
            if len(at):
                out = out.index_add(0, at, expert(x[at]) * gate[at, None])
        return x + out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(10, 24)
        self.layers = nn.ModuleList([Experts(24), Experts(24)])
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).squeeze(1)


torch.manual_seed(0)
x = torch.randn(512, 10)
y = torch.where(x[:, 0] > 0, x[:, 1] * 2, x[:, 2].abs()) + 0.5 * x[:, 3]
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for step in range(40):
    at = torch.randint(0, len(x), (64,))
    loss = F.mse_loss(model(x[at]), y[at])
    for layer in model.layers:
        loss = loss + 0.1 * (layer.balance.item() if FAULT else layer.balance)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
