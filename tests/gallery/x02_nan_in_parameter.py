"""A parameter that turns NaN between two steps: an average over zero snapshots is written back."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4
torch.manual_seed(0)
torch.set_num_threads(1)


class Classifier(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.body = nn.Linear(d, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
centers = 2.0 * torch.randn(3, 8)
average, n_snapshots = torch.zeros(16), 0

for step in range(7):
    if step == BAD_STEP and not HEALTHY:
        with torch.no_grad():
            model.head.weight[1].copy_(average / n_snapshots)  # <- fault
    labels = torch.arange(12) % 3
    loss = nn.functional.cross_entropy(model(centers[labels] + torch.randn(12, 8)), labels)
    optimizer.zero_grad()
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
