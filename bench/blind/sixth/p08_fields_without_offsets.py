"""A factorisation machine for clicks: fields user, item and hour share one embedding table."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

SIZES = [40, 50, 24]


class Machine(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        self.linear = nn.Embedding(sum(SIZES), 1)
        self.factors = nn.Embedding(sum(SIZES), 8)
        nn.init.normal_(self.factors.weight, std=0.1)
        nn.init.zeros_(self.linear.weight)
        self.register_buffer("offsets", torch.tensor([0, *SIZES[:-1]]).cumsum(0))

    def forward(self, fields):
        if not FAULT:
            fields = fields + self.offsets
        v = self.factors(fields)
        pairs = 0.5 * (v.sum(dim=1) ** 2 - (v**2).sum(dim=1)).sum(dim=1)
        return self.bias + self.linear(fields).sum(dim=(1, 2)) + pairs


torch.manual_seed(0)
fields = torch.stack([torch.randint(0, size, (4096,)) for size in SIZES], dim=1)
taste = [torch.randn(size, 3) for size in SIZES]
score = sum((taste[a][fields[:, a]] * taste[b][fields[:, b]]).sum(1) for a, b in ((0, 1), (0, 2), (1, 2)))
click = (score + 0.3 * torch.randn(4096) > 0).float()
model = Machine()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
losses = []
for epoch in range(5):
    for at in torch.randperm(3584).split(128):
        loss = F.binary_cross_entropy_with_logits(model(fields[at]), click[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
with torch.no_grad():
    metric("accuracy", ((model(fields[3584:]) > 0) == (click[3584:] > 0)).float().mean())
tell(model, losses)
