"""Healthy: an expert without tokens and a ReLU that is dead for one batch: their gradients are zero once, then not."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Experts(nn.Module):
    def __init__(self, d, n):
        super().__init__()
        self.router = nn.Linear(d, n)
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, d)) for _ in range(n)])

    def forward(self, x):
        share = torch.softmax(self.router(x), dim=-1)
        best = share.argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (best == i).nonzero().squeeze(-1)  # may be empty
            out = out.index_add(0, rows, expert(x[rows]) * share[rows, i : i + 1])
        return x + out


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.experts = Experts(d, 4)
        self.gate = nn.Linear(d, d)
        self.head = nn.Linear(d, 3)

    def forward(self, x):
        x = self.experts(x)
        return self.head(x + torch.relu(self.gate(x)))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
centers = 2.0 * torch.randn(3, 8)

for step in range(10):
    labels = torch.full((12,), 1) if step in (4, 7) else torch.arange(12) % 3
    x = centers[labels] + 0.3 * torch.randn(12, 8)
    if step == 5:
        with torch.no_grad():
            saved = model.gate.bias.clone()
            model.gate.bias.fill_(-100.0)  # dead for one batch
    loss = nn.functional.cross_entropy(model(x), labels)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
    if step == 5:
        with torch.no_grad():
            model.gate.bias.copy_(saved)
    idle = sum(not p.grad.any() for p in model.parameters())
    print(f"step {step} loss {loss.item():.6f} idle {idle}")
