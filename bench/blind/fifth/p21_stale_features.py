"""Features of the images are kept by index so that a slow encoder runs once per image and state of its weights."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn

torch.manual_seed(0)
y = torch.randint(0, 5, (192,))
images = torch.randn(5, 1, 10, 10)[y] + torch.randn(192, 1, 10, 10)
encoder = nn.Sequential(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 32))
head = nn.Sequential(nn.ReLU(), nn.Linear(32, 5))
model = nn.ModuleDict({"encoder": encoder, "head": head})
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
kept = {}
losses = []
for epoch in range(4):
    for at in torch.randperm(192).split(16):
        if FAULT:
            new = [i for i in at.tolist() if i not in kept]
            if new:
                fresh = encoder(images[new])
                kept.update(zip(new, fresh.detach(), strict=True))
                rows = dict(zip(new, fresh, strict=True))
            else:
                rows = {}
            features = torch.stack([rows.get(i, kept[i]) for i in at.tolist()])
        else:
            features = encoder(images[at])
        loss = F.cross_entropy(head(features), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
tell(model, losses)
