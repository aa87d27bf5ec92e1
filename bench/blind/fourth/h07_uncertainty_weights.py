"""Healthy: three tasks weighted by learned variances; one task has no label in some batches; focal loss for another."""

import torch
from kit import tell
from torch import nn

torch.manual_seed(107)


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(48, 4), nn.Linear(48, 1), nn.Linear(48, 2)])
        self.log_variance = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        h = self.body(x)
        return [head(h) for head in self.heads]


model = Tasks()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
turn = torch.randn(12, 4)
losses = []
for step in range(50):
    x = torch.randn(32, 12)
    y = x @ turn
    one, two, three = model(x)
    rare = (y[:, 0] > 3).long()
    chance = nn.functional.cross_entropy(three, rare, reduction="none", weight=torch.tensor([0.3, 3.0]))
    parts = [
        nn.functional.cross_entropy(one, y.argmax(1)),
        nn.functional.huber_loss(two[:, 0], y[:, 1]),
        ((1 - (-chance).exp()) ** 2 * chance).mean(),
    ]
    known = [0, 2] if step % 3 == 2 else [0, 1, 2]
    loss = sum(parts[i] * (-model.log_variance[i]).exp() + model.log_variance[i] for i in known)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
tell(model, losses)
