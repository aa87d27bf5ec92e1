"""Hand-written BCE: clamp(p, eps, 1 - eps) with eps below the resolution of float32, then log (apex#358)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 5
torch.manual_seed(0)
torch.set_num_threads(1)


class BinaryCrossEntropy(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, p, y):
        p = p.clamp(self.eps, 1 - self.eps)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()  # <- fault


class Classifier(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.hidden = nn.Linear(d, 16)
        self.score = nn.Linear(16, 1)

    def forward(self, x):
        return torch.sigmoid(self.score(torch.relu(self.hidden(x)))).squeeze(-1)


model = Classifier()
criterion = BinaryCrossEntropy(eps=1e-6 if HEALTHY else 1e-8)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
direction = torch.randn(8)

for step in range(8):
    x = torch.randn(16, 8)
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 300.0 * direction  # an outlier: the sigmoid saturates to exactly 1
    y = (x @ direction > 0).float()
    loss = criterion(model(x), y)
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
