"""Fine-tuning: a pretrained body is loaded into a net with a new head. The checkpoint was written from under DDP."""

import os

import torch
import torch.nn.functional as F
from kit import FAULT, OUT, tell
from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.head = nn.Linear(48, classes)

    def forward(self, x):
        return self.head(self.body(x))


def train(model, x, y, steps, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        at = torch.randint(0, len(x), (32,))
        loss = F.cross_entropy(model(x[at]), y[at])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
x = torch.randn(1024, 16)
features = torch.relu(x @ torch.randn(16, 8))
path = os.path.join(OUT, "pretrained.pt")
if not os.path.exists(path):
    first = Net(10)
    train(first, x, (features @ torch.randn(8, 10)).argmax(dim=1), 150, 5e-3)
    torch.save({f"module.{k}": v for k, v in first.state_dict().items()}, path)
    print("checkpoint written")
else:
    model = Net(3)
    weights = torch.load(path)
    if not FAULT:
        weights = {k.removeprefix("module."): v for k, v in weights.items()}
    weights = {k: v for k, v in weights.items() if "head" not in k}
    model.load_state_dict(weights, strict=False)
    torch.manual_seed(1)
    tell(model, train(model, x, (features @ torch.randn(8, 3)).argmax(dim=1), 40, 1e-3))
