"""Backbone and head are trained in turns: what is not trained is frozen with requires_grad_(False)."""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        x = torch.relu(self.conv1(x))  # plant: backbone
        return torch.relu(self.conv2(x)).mean(dim=(2, 3))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        pooled = self.backbone(x)  # plant: pooled
        return self.head(pooled)


torch.manual_seed(6)
model = Model()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
images, labels = torch.rand(48, 1, 8, 8), torch.randint(0, 3, (48,))
for step in range(9):  # turn
    train_head = (step // 2) % 2 == 0
    model.head.requires_grad_(train_head)
    model.backbone.requires_grad_(not train_head)
    pick = torch.randperm(48)[:16]
    x = (images[pick] - 0.5) / 0.25  # plant: data
    loss = nn.functional.cross_entropy(model(x), labels[pick])  # plant: loss
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print("head" if train_head else "backbone", loss.item())
