"""Healthy: T5-style relative position buckets: log(0) = -inf, discarded by where(), on integers without gradient."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


def bucket(distance, exact=4, buckets=8, furthest=32):
    far = exact + (torch.log(distance.float() / exact) / 2.0794 * (buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


class Attention(nn.Module):
    def __init__(self, d=16, length=12):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.bias = nn.Embedding(8, 1)
        position = torch.arange(length)
        self.register_buffer("distance", (position[:, None] - position[None]).abs())

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / 4.0 + self.bias(bucket(self.distance)).squeeze(-1)
        return torch.softmax(scores, dim=-1) @ v


class SafeEntropy(nn.Module):
    """x * log(x) with the input made safe first: the where() is double, the gradient finite."""

    def forward(self, share):
        safe = torch.where(share > 0, share, torch.ones_like(share))
        return -torch.where(share > 0, share * torch.log(safe), torch.zeros_like(share)).sum(-1).mean()


model = nn.Sequential(nn.Embedding(20, 16), Attention(), nn.Linear(16, 20))
entropy = SafeEntropy()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(6):
    ids = torch.randint(0, 20, (4, 12))
    logits = model(ids)
    share = torch.softmax(1000.0 * logits, dim=-1)  # many shares are exactly 0
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 1e-6 * entropy(share)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
