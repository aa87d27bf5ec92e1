"""A mixture of experts: dense while the router warms up, then each token to its best expert, with a capacity."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(113)


class Experts(nn.Module):
    def __init__(self, width=24, experts=4, factor=1.5):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(experts)
        )
        self.factor, self.sparse = factor, False

    def forward(self, x):
        probability = self.router(x).softmax(dim=-1)
        if not self.sparse:
            every = torch.stack([expert(x) for expert in self.experts], dim=1)
            return (probability[..., None] * every).sum(dim=1), probability
        gate, chosen = probability.max(dim=-1)
        order = chosen.argsort(stable=True)
        ordered, counts = x[order], chosen.bincount(minlength=len(self.experts)).tolist()
        capacity = int(self.factor * len(x) / len(self.experts))
        parts = []
        for expert, part in zip(self.experts, ordered.split(counts), strict=True):
            done = expert(part[:capacity])
            parts.append(torch.cat([done, torch.zeros_like(part[capacity:])]))
        mixed = torch.cat(parts)
        if FAULT:
            back = mixed[order]
        else:
            back = mixed[order.argsort()]
        return gate[:, None] * back, probability


class Model(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.enter, self.norm = nn.Linear(10, width), nn.LayerNorm(width)
        self.experts = Experts(width)
        self.leave = nn.Linear(width, 3)

    def forward(self, x):
        h = self.enter(x)
        mixed, probability = self.experts(self.norm(h))
        return self.leave(h + mixed), probability


def balance(probability):
    share = nn.functional.one_hot(probability.argmax(-1), probability.shape[1]).float().mean(0)
    return probability.shape[1] * (share * probability.mean(0)).sum()


x = torch.randn(2560, 10)
y = torch.where(x[:, :1] > 0, x @ torch.randn(10, 3), torch.tanh(2 * x @ torch.randn(10, 3)))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for step in range(60):
    model.experts.sparse = step >= 25
    rows = torch.randint(0, 2304, (64,))
    out, probability = model(x[rows])
    loss = nn.functional.mse_loss(out, y[rows]) + 0.01 * balance(probability)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())

with torch.no_grad():
    metric("held", nn.functional.mse_loss(model(x[2304:])[0], y[2304:]))
tell(model, losses)
