"""Activation checkpointing without the random state: from the step at which dropout is switched on, masks differ."""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # dropout is switched on here, after a warm-up without
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        return x + self.down(self.dropout(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet, self.outlet = nn.Linear(8, 32), nn.Linear(32, 1)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))

    def forward(self, x):
        x = self.inlet(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=HEALTHY)  # <- fault
        return self.outlet(x)


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(8):
    if step == BAD_STEP:
        for block in model.blocks:
            block.dropout.p = 0.5
    x = torch.randn(64, 8)
    loss = nn.functional.mse_loss(model(x).squeeze(-1), x.sum(-1))
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
