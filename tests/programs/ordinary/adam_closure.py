"""Logistic regression; Adam is given a closure, as the documentation of torch.optim shows."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
X = torch.randn(96, 5)
Y = (X[:, 0] - X[:, 1] * X[:, 2] > 0).float()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU())
        self.out = nn.Linear(12, 1)

    def forward(self, x):
        features = self.body(x)  # plant: forward
        return self.out(features).squeeze(1)


model = Classifier()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(4):
    for start in range(0, 96, 32):  # turn
        xb = X[start : start + 32] * 1.5  # plant: data
        yb = Y[start : start + 32]

        def closure():
            opt.zero_grad()
            logits = model(xb)  # plant: output
            loss = F.binary_cross_entropy_with_logits(logits, yb)  # plant: loss
            loss.backward()
            return loss

        loss = opt.step(closure)
        print(f"epoch {epoch} batch {start // 32}: {loss.item()}")
