"""A distance written as sqrt(sum(x^2)): its gradient at zero is inf * 0 (pytorch#2421)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 6, 1
torch.manual_seed(0)
torch.set_num_threads(1)


class Siamese(nn.Module):
    def __init__(self, d=8, k=4):
        super().__init__()
        self.hidden = nn.Linear(d, 16)
        self.embed = nn.Linear(16, k)

    def forward(self, left, right):
        difference = self.one(left) - self.one(right)
        if HEALTHY:
            return torch.linalg.vector_norm(difference, dim=-1)
        squares = (difference**2).sum(-1)
        return torch.sqrt(squares)  # <- fault

    def one(self, x):
        return self.embed(torch.tanh(self.hidden(x)))


class ContrastiveLoss(nn.Module):
    def forward(self, distance, same):
        return (same * distance + (1 - same) * torch.relu(2.0 - distance)).mean()


model = Siamese()
criterion = ContrastiveLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(9):
    left = torch.randn(8, 8)
    same = (torch.arange(8) % 2).float()
    right = torch.where(same[:, None] > 0, left + 0.1 * torch.randn(8, 8), -left)
    if step == BAD_STEP:
        right[BAD_SAMPLE] = left[BAD_SAMPLE]  # a duplicate in the data
    loss = criterion(model(left, right), same)
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
