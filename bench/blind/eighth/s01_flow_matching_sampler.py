"""Flow matching on a plane of rings; samples are drawn every few steps to follow the quality."""

import math

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(101)


class Velocity(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.register_buffer("frequency", 2.0 ** torch.arange(4) * math.pi)
        self.net = nn.Sequential(
            nn.Linear(2 + 8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2)
        )

    def forward(self, x, t):
        angle = t[:, None] * self.frequency
        return self.net(torch.cat([x, angle.sin(), angle.cos()], dim=1))


def rings(count):
    angle = 2 * math.pi * torch.rand(count)
    radius = torch.where(torch.rand(count) < 0.5, 1.0, 2.0)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)


@torch.no_grad()
def sample(model, count=64, steps=12, seed=1234):
    """Euler from noise to data; the same noise each time, so that pictures can be compared."""
    model.eval()
    if FAULT:
        torch.manual_seed(seed)
        x = torch.randn(count, 2)
    else:
        x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    for i in range(steps):
        t = torch.full((count,), i / steps)
        x = x + model(x, t) / steps
    model.train()
    return x


data = rings(2048)
model = Velocity()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=72)
losses, widths = [], []
for step in range(72):
    x1 = data[torch.randint(0, len(data), (64,))]
    x0 = torch.randn_like(x1)
    t = torch.rand(len(x1))
    xt = (1 - t[:, None]) * x0 + t[:, None] * x1
    loss = nn.functional.mse_loss(model(xt, t), x1 - x0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.detach())
    if step % 8 == 7:
        widths.append(sample(model).norm(dim=1).mean())

metric("radius", widths[-1])
tell(model, losses)
