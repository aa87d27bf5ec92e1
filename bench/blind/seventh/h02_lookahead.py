"""Right: Lookahead sets the weights back toward slow ones each fifth step, and evaluates now and then."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(22)
x = torch.randn(768, 16)
y = (torch.tanh(x @ torch.randn(16, 24)) @ torch.randn(24, 5)).argmax(1)


class Lookahead:
    def __init__(self, inner, every=5, alpha=0.5):
        self.inner, self.every, self.alpha, self.count = inner, every, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in inner.param_groups]

    def zero_grad(self):
        self.inner.zero_grad()

    @torch.no_grad()
    def step(self):
        self.inner.step()
        self.count += 1
        if self.count % self.every:
            return
        for group, slow in zip(self.inner.param_groups, self.slow, strict=True):
            for p, s in zip(group["params"], slow, strict=True):
                s.lerp_(p, self.alpha)
                p.copy_(s)


model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))
optimizer = Lookahead(torch.optim.AdamW(model.parameters(), lr=5e-3))
losses = []
for step in range(60):
    index = torch.randint(640, (64,))
    loss = nn.functional.cross_entropy(model(x[index]), y[index])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step % 20 == 19:
        model.eval()
        with torch.no_grad():
            metric("loss", nn.functional.cross_entropy(model(x[640:]), y[640:]))
        model.train()
tell(model, losses)
