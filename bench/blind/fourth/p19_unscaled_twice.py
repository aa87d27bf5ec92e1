"""A CNN under GradScaler: after scaler.unscale_ the gradients are divided by the scale a second time, by hand."""

import torch
from kit import FAULT, tell
from torch import nn

torch.manual_seed(19)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.GroupNorm(4, 16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 5),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
means = torch.randn(5, 3, 8, 8)
losses = []
for _ in range(40):
    y = torch.randint(0, 5, (32,))
    x = means[y] + 0.7 * torch.randn(32, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    if FAULT:
        for p in model.parameters():
            p.grad.mul_(1.0 / scaler.get_scale())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.detach())
tell(model, losses)
