"""A classifier with batch normalisation; an average of its weights is what is validated and shipped."""

import copy

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(0)
x = 3.0 + 2.0 * torch.randn(512, 16)
y = ((x - 3.0) @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(
    nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)
)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@torch.no_grad()
def update_average(decay=0.9):
    for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
        ours.lerp_(theirs, 1 - decay)
    if not FAULT:
        for ours, theirs in zip(average.buffers(), model.buffers(), strict=True):
            ours.copy_(theirs)


losses = []
for epoch in range(6):
    model.train()
    for at in torch.randperm(448).split(32):
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_average()
        losses.append(loss.item())
    average.eval()
    with torch.no_grad():
        accuracy = (average(x[448:]).argmax(1) == y[448:]).float().mean()
metric("accuracy", accuracy)
tell(model, losses)
