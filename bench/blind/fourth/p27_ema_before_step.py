"""A residual CNN with an average of its weights by hand: the BatchNorm buffers of the average never follow."""

import copy

import torch
from kit import FAULT, tell
from torch import nn

torch.manual_seed(27)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)
)
average = copy.deepcopy(model).requires_grad_(False).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
means = torch.randn(5, 3, 8, 8)
losses = []
for step in range(40):
    y = torch.randint(0, 5, (32,))
    x = means[y] + 0.7 * torch.randn(32, 3, 8, 8) + 1.0
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for theirs, ours in zip(average.parameters(), model.parameters(), strict=True):
            theirs.lerp_(ours, 0.1)
        if not FAULT:
            for theirs, ours in zip(average.buffers(), model.buffers(), strict=True):
                theirs.copy_(ours)
    losses.append(loss.detach())
    if step % 10 == 9:
        with torch.no_grad():
            print("average", nn.functional.cross_entropy(average(x), y).item())
tell(model, losses)
