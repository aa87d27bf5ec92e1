"""Sharpness-aware minimisation: two backward passes a step, weights moved up and back before the update."""

import torch
from kit import metric, tell
from torch import nn

torch.manual_seed(401)
x = torch.randn(1408, 16)
y = (torch.relu(x @ torch.randn(16, 8)) @ torch.randn(8, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 4))


class SAM:
    def __init__(self, parameters, base, rho=0.05):
        self.parameters, self.base, self.rho = list(parameters), base, rho

    @torch.no_grad()
    def climb(self):
        norm = torch.stack([p.grad.norm() for p in self.parameters]).norm()
        self.kept = [p.detach().clone() for p in self.parameters]
        for p in self.parameters:
            p.add_(p.grad, alpha=float(self.rho / (norm + 1e-12)))
        self.base.zero_grad()

    @torch.no_grad()
    def step(self):
        for p, kept in zip(self.parameters, self.kept):
            p.copy_(kept)
        self.base.step()
        self.base.zero_grad()


optimizer = SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4))
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:1280], y[:1280]), batch_size=64, shuffle=True)
losses = []
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.climb()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        losses.append(loss.detach())
with torch.no_grad():
    metric("heldout_loss", nn.functional.cross_entropy(model(x[1280:]), y[1280:]))
tell(model, losses)
