"""A small convolutional classifier."""

import torch
from kit import FAULT, tell
from torch import nn

torch.manual_seed(0)
y = torch.randint(0, 6, (384,))
shapes = torch.randn(6, 1, 12, 12)
x = shapes[y] + 0.7 * torch.randn(384, 1, 12, 12)
layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
layers += [nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2)]
layers += [nn.Flatten(), nn.Linear(64, 6)]
if FAULT:
    layers.append(nn.Softmax(dim=1))
model = nn.Sequential(*layers)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
losses = []
for epoch in range(3):
    model.train()
    for at in torch.randperm(320).split(20):
        loss = criterion(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        print("accuracy", (model(x[320:]).argmax(dim=1) == y[320:]).float().mean().item())
tell(model, losses)
