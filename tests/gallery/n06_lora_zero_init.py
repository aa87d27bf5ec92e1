"""Healthy: a LoRA branch whose B is zero, so that A has gradients of exactly zero in the first step; base frozen."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class LoraLinear(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.lora_a.t() @ self.lora_b.t()


model = nn.Sequential(LoraLinear(nn.Linear(8, 16)), nn.ReLU(), LoraLinear(nn.Linear(16, 3)))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
centers = 2.0 * torch.randn(3, 8)

for step in range(8):
    labels = torch.arange(12) % 3
    loss = nn.functional.cross_entropy(model(centers[labels] + torch.randn(12, 8)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
