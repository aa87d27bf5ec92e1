"""Activation checkpointing of every block of a small residual network, with dropout."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        h = nn.functional.silu(self.fc1(self.norm(x)))  # plant: block
        return x + self.drop(self.fc2(h))


class Net(nn.Module):
    def __init__(self, d=8, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(depth))
        self.head = nn.Linear(d, 2)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        pooled = x.mean(1)  # plant: pooled
        return self.head(pooled)


torch.manual_seed(14)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(7):  # turn
    seq = torch.randn(8, 5, 8)  # plant: data
    label = (seq.mean((1, 2)) > 0).long()
    loss = nn.functional.cross_entropy(net(seq), label)  # plant: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
