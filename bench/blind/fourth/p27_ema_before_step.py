"""A residual CNN with AveragedModel: the average is taken before the step and its BatchNorm buffers never follow."""

import torch
from kit import FAULT, tell
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(27)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1, bias=False),
            nn.BatchNorm2d(c),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=not FAULT)
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
    average.update_parameters(model)
    losses.append(loss.detach())
    if step % 10 == 9:
        average.eval()
        with torch.no_grad():
            print("average", nn.functional.cross_entropy(average(x), y).item())
tell(model, losses)
