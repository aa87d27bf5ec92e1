"""Whitening through eigh: a blank sample has repeated eigenvalues and 1/(l_i - l_j) in backward (pytorch#49886)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 3, 2
torch.manual_seed(0)
torch.set_num_threads(1)


class Whitening(nn.Module):
    def forward(self, x):
        d = x.shape[-1]
        covariance = x.transpose(1, 2) @ x / x.shape[1] + 0.1 * torch.eye(d)
        if HEALTHY:
            covariance = covariance + torch.diag(1e-3 * torch.arange(d))
        values, vectors = torch.linalg.eigh(covariance)  # <- fault
        return x @ vectors * values.rsqrt()[:, None, :]


class Classifier(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.project = nn.Linear(d, 3, bias=False)
        self.whiten = Whitening()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.whiten(self.project(x)).pow(2).mean(dim=1) + self.project(x).mean(dim=1))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)

for step in range(6):
    labels = torch.arange(6) % 2
    x = torch.randn(6, 10, 4) + 2.0 * labels[:, None, None]
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 0.0  # a blank frame
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
