"""Healthy: BYOL: the target learns by average alone, and its side of the loss has no gradient."""

import copy

import torch
from kit import tell
from torch import nn

torch.manual_seed(103)
online = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2, 1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(128, 32),
)
target = copy.deepcopy(online).requires_grad_(False)
predict = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.SGD([*online.parameters(), *predict.parameters()], lr=0.05, momentum=0.9, weight_decay=1e-4)


def distance(a, b):
    return 2 - 2 * nn.functional.cosine_similarity(a, b.detach(), dim=-1).mean()


losses = []
for step in range(40):
    x = torch.randn(32, 3, 8, 8)
    a, b = x + 0.3 * torch.randn_like(x), (x + 0.3 * torch.randn_like(x)).flip(-1)
    with torch.no_grad():
        ta, tb = target(a), target(b)
    loss = distance(predict(online(a)), tb) + distance(predict(online(b)), ta)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rate = 1 - 0.04 * (1 + torch.cos(torch.tensor(step / 40 * 3.14159))) / 2
    with torch.no_grad():
        for mine, theirs in zip(online.parameters(), target.parameters(), strict=True):
            theirs.lerp_(mine, 1 - rate)
    losses.append(loss.detach())
tell(online, losses)
