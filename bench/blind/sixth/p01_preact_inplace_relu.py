"""A pre-activation residual network on small images."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.act = nn.ReLU(inplace=FAULT)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        out = self.conv1(self.act(x))
        out = self.conv2(F.relu(self.norm(out)))
        return x + out


torch.manual_seed(0)
x = torch.randn(512, 1, 10, 10)
kernel = torch.randn(4, 1, 3, 3)
y = F.conv2d(x, kernel).relu().square().mean(dim=(2, 3)).sub(torch.tensor([2.0, 3.0, 4.0, 3.0])).argmax(dim=1)
model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1),
    *(Block(12) for _ in range(5)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(12, 4),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(60):
    at = torch.randint(0, 448, (32,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval()
with torch.no_grad():
    metric("accuracy", (model(x[448:]).argmax(1) == y[448:]).float().mean())
tell(model, losses)
