"""A two-tower recommender with sampled negatives whose catalogue grows while it trains."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(107)
USERS, ITEMS, NEW, WIDTH = 60, 80, 20, 16


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)

    def forward(self, user, item):
        u = self.project(self.users(user))
        return (u[:, None] * self.items(item)).sum(-1)

    def grow(self, count):
        """Keep what was learned of the items there are, and start the new ones small."""
        weight = torch.cat([self.items.weight.detach(), 0.1 * torch.randn(count, WIDTH)])
        if FAULT:
            self.items = nn.Embedding.from_pretrained(weight)
        else:
            self.items = nn.Embedding.from_pretrained(weight, freeze=False)


def make_optimizer(model):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def clicks(items, count, g):
    user = torch.randint(0, USERS, (count,), generator=g)
    jump = torch.randint(0, items // 10, (count,), generator=g)
    return user, (user % 10 + 10 * jump) % items


def negatives(items, shape, g):
    return torch.randint(0, items, shape, generator=g)


g = torch.Generator().manual_seed(7)
model, items = TwoTower(), ITEMS
optimizer = make_optimizer(model)
losses = []
for step in range(70):
    if step == 35:
        items += NEW
        model.grow(NEW)
        optimizer = make_optimizer(model)
    user, positive = clicks(items, 64, g)
    negative = negatives(items, (64, 8), g)
    scores = model(user, torch.cat([positive[:, None], negative], dim=1))
    loss = nn.functional.cross_entropy(scores, torch.zeros(64, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

with torch.no_grad():
    user, positive = clicks(items, 512, g)
    scores = model(user, torch.arange(items).expand(512, -1))
    metric("rank", (scores > scores.gather(1, positive[:, None])).sum(1).float().mean())
tell(model, losses)
