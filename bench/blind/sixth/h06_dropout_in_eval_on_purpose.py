"""Right: a frozen body with its batch statistics fixed, validated with dropout on (Monte Carlo), pseudo-labels from it."""

import torch
import torch.nn.functional as F
from kit import metric, tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
body = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU())
body(x)
body.requires_grad_(False)
head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))
model = nn.Sequential(body, head)
optimizer = torch.optim.AdamW(head.parameters(), lr=5e-3)


def monte_carlo(inputs):
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train()
    with torch.no_grad():
        return torch.stack([model(inputs).softmax(-1) for _ in range(8)]).mean(0)


losses = []
for epoch in range(8):
    head.train()
    body.eval()
    for at in torch.randperm(256).split(32):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    sure = monte_carlo(x[256:512])
    chosen = sure.max(1).values > 0.9
    if epoch >= 4 and chosen.sum() >= 8:
        head.train()
        body.eval()
        loss = 0.5 * F.cross_entropy(model(x[256:512][chosen]), sure[chosen].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
metric("accuracy", (monte_carlo(x[512:]).argmax(1) == y[512:]).float().mean())
tell(model, losses)
