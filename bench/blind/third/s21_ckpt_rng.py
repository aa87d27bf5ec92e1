"""Activation checkpointing with dropout and preserve_rng_state=False: the recomputed mask is another one."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from c import FAULT, finish

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * d, d))

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.blocks, self.out = (
            nn.Linear(10, 32),
            nn.ModuleList(Block(32) for _ in range(3)),
            nn.Linear(32, 4),
        )

    def forward(self, x):
        x = self.inp(x)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False, preserve_rng_state=not FAULT)  # FAULT
        return self.out(x)


model = Net()
opt = torch.optim.AdamW(model.parameters(), 2e-3)
W = torch.randn(10, 4)
losses = []
for step in range(40):
    x = torch.randn(32, 10)
    loss = F.cross_entropy(model(x), (x @ W).argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
