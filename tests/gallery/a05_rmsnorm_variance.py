"""An RMSNorm that squares in float16: the variance overflows and the output is exactly zero (pytorch#66707)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 5
torch.manual_seed(0)
torch.set_num_threads(1)


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        if HEALTHY:
            x = x.float()
        variance = x.pow(2).mean(-1, keepdim=True)  # <- fault
        return (x * torch.rsqrt(variance + 1e-5)).to(self.weight.dtype) * self.weight


class Network(nn.Module):
    def __init__(self, d=16, classes=4):
        super().__init__()
        self.up = nn.Linear(d, d)
        self.norm = RMSNorm(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        return self.head(self.norm(self.up(x)))


model = Network().half()
with torch.no_grad():
    model.up.weight.copy_(torch.linalg.qr(torch.randn(16, 16)).Q)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
centers = torch.nn.functional.normalize(torch.randn(4, 16), dim=-1)

for step in range(8):
    labels = torch.arange(16) % 4
    gain = 5000.0 if step >= BAD_STEP else 100.0  # a new data shard in other units
    x = (gain * (centers[labels] + 0.02 * torch.randn(16, 16))).half()
    loss = nn.functional.cross_entropy(model(x).float(), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} zero {sum(not p.grad.any() for p in model.parameters())}")
    optimizer.step()
    optimizer.zero_grad()
