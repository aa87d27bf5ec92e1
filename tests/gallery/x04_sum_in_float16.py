"""A loss summed in float16: every term is small, the sum is above 65504."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # a batch of long sequences
torch.manual_seed(0)
torch.set_num_threads(1)


class Regressor(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.hidden = nn.Linear(d, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x))).squeeze(-1)


class SequenceLoss(nn.Module):
    def forward(self, prediction, target):
        error = (prediction - target).pow(2)
        if HEALTHY:
            error = error.float()
        return error.sum() / error.numel()  # <- fault


model = Regressor().half()
criterion = SequenceLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)

for step in range(7):
    length = 4096 if step == BAD_STEP else 64
    x = torch.randn(8, length, 4).half()
    loss = criterion(model(x), 10.0 + x.sum(-1))
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
