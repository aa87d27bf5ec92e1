"""Two tasks on one trunk: groups with learning rates of their own, each loss has its backward, retain_graph."""

import torch
import torch.nn as nn


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 20)
        self.gate = nn.Parameter(torch.ones(20))

    def forward(self, x):
        shared = torch.sigmoid(self.fc(x)) * self.gate  # plant: trunk
        return shared


torch.manual_seed(47)
trunk = Trunk()
head_a, head_b = nn.Linear(20, 1), nn.Linear(20, 3)
optimizer = torch.optim.SGD(
    [
        {"params": trunk.parameters(), "lr": 0.02},
        {"params": head_a.parameters()},
        {"params": head_b.parameters(), "weight_decay": 1e-3},
    ],
    lr=0.05,
    momentum=0.9,
    nesterov=True,
)
X, YA, YB = torch.randn(40, 8), torch.randn(40, 1), torch.randint(0, 3, (40,))
for step in range(8):  # turn
    x = X + 0.05 * torch.randn_like(X)  # plant: data
    optimizer.zero_grad()
    feats = trunk(x)
    loss_a = nn.functional.mse_loss(head_a(feats), YA)  # plant: loss-a
    loss_b = nn.functional.cross_entropy(head_b(feats), YB)  # plant: loss-b
    loss_a.backward(retain_graph=True)
    loss_b.backward()
    optimizer.step()
    print(step, loss_a.item(), loss_b.item())
