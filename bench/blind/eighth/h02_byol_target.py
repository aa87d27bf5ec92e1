"""Right: BYOL; the target follows the online net by an average, and takes no gradient."""

import copy

import torch
from kit import metric, tell
from torch import nn
from torch.nn import functional as F

torch.manual_seed(202)
encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16))
predictor = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
target = copy.deepcopy(encoder).requires_grad_(False)
optimizer = torch.optim.SGD([*encoder.parameters(), *predictor.parameters()], lr=0.1, momentum=0.9, weight_decay=1e-4)
centres = 2 * torch.randn(5, 16)


def view(x):
    keep = (torch.rand_like(x) > 0.15).float()
    return keep * x + 0.2 * torch.randn_like(x)


def regress(a, b):
    return 2 - 2 * F.cosine_similarity(predictor(encoder(a)), target(b).detach(), dim=-1).mean()


losses = []
for step in range(60):
    x = centres[torch.randint(0, 5, (64,))] + 0.3 * torch.randn(64, 16)
    first, second = view(x), view(x)
    loss = regress(first, second) + regress(second, first)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    momentum = 1 - 0.05 * (1 - step / 60)
    with torch.no_grad():
        for t, o in zip(target.parameters(), encoder.parameters(), strict=True):
            t.lerp_(o, 1 - momentum)
    losses.append(loss.detach())
encoder.eval()
with torch.no_grad():
    z = F.normalize(encoder(centres), dim=1)
    metric("spread", (z @ z.T).triu(1).sum() / 10)
tell(encoder, losses)
