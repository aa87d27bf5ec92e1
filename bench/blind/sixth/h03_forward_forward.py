"""Right: the forward-forward algorithm: each layer has its own loss and optimizer, and no gradient goes between them."""

import torch
import torch.nn.functional as F
from kit import metric, tell
from torch import nn


class Layer(nn.Linear):
    def forward(self, x):
        return F.relu(super().forward(F.normalize(x, dim=1) * x.shape[1] ** 0.5))


torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.ModuleList([Layer(20, 64), Layer(64, 64)])
optimizers = [torch.optim.Adam(layer.parameters(), lr=5e-3) for layer in model]


def with_label(inputs, labels):
    return torch.cat([inputs, 4.0 * F.one_hot(labels, 4)], dim=1)


losses = []
for step in range(100):
    at = torch.randint(0, 512, (64,))
    good = with_label(x[at], y[at])
    bad = with_label(x[at], (y[at] + torch.randint(1, 4, (64,))) % 4)
    for layer, optimizer in zip(model, optimizers, strict=True):
        good, bad = layer(good.detach()), layer(bad.detach())
        goodness = torch.cat([2.0 - good.square().mean(1), bad.square().mean(1) - 2.0])
        loss = F.softplus(goodness).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    scores = []
    for k in range(4):
        h, total = with_label(x[512:], torch.full((128,), k)), 0
        for layer in model:
            h = layer(h)
            total = total + h.square().mean(1)
        scores.append(total)
metric("accuracy", (torch.stack(scores, 1).argmax(1) == y[512:]).float().mean())
tell(model, losses)
