"""Healthy: sharpness-aware minimization: weights are moved up, a second backward is made, weights are put back, then stepped."""

import torch
from kit import tell
from torch import nn

torch.manual_seed(108)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.GroupNorm(4, 16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(64, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
means = torch.randn(5, 3, 8, 8)
losses = []
for _ in range(40):
    y = torch.randint(0, 5, (32,))
    x = means[y] + 0.7 * torch.randn(32, 3, 8, 8)
    loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)
    loss.backward()
    with torch.no_grad():
        norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
        moves = [p.grad * (0.05 / (norm + 1e-12)) for p in model.parameters()]
        for p, move in zip(model.parameters(), moves, strict=True):
            p.add_(move)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
    with torch.no_grad():
        for p, move in zip(model.parameters(), moves, strict=True):
            p.sub_(move)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
