"""The where() trap in loss code: x * log(x) with the zeros discarded after the logarithm (pytorch#52248)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 6
torch.manual_seed(0)
torch.set_num_threads(1)


class Router(nn.Module):
    def __init__(self, d=8, experts=4):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.Linear(d, experts)

    def forward(self, x):
        share = torch.softmax(self.gate(x), dim=-1)
        return (share * self.experts(x)).sum(-1), share


def entropy(share):
    if HEALTHY:
        share = share.clamp(min=1e-12)
    terms = torch.where(share > 0, share * torch.log(share), torch.zeros_like(share))  # <- fault
    return -terms.sum(-1).mean()


model = Router()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
direction = torch.randn(8)

for step in range(8):
    x = torch.randn(32, 8)
    if step == BAD_STEP:
        x[BAD_SAMPLE] *= 1000.0  # one expert takes all: the others' share underflows to exactly 0
    y, share = model(x)
    loss = nn.functional.huber_loss(y, x @ direction) - 0.01 * entropy(share)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
