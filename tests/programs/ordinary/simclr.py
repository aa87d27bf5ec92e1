"""Contrastive learning: two views of each sample, normalised projections, NT-Xent."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Projector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.projection = nn.Linear(24, 8)

    def forward(self, x):
        h = self.backbone(x)  # plant: forward
        return F.normalize(self.projection(h), dim=1)


def augment(x):
    view = x * (torch.rand_like(x) > 0.2) + 0.1 * torch.randn_like(x)  # plant: data
    return view


def nt_xent(z1, z2, temperature=0.5):
    z = torch.cat([z1, z2])
    sim = z @ z.t() / temperature  # plant: similarity
    sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    n = len(z1)
    labels = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, labels)


torch.manual_seed(77)
model = Projector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
samples = torch.randn(80, 12)
for step in range(8):  # turn
    batch = samples[torch.randperm(80)[:20]]
    loss = nt_xent(model(augment(batch)), model(augment(batch)))  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("contrastive loss", loss.item())
