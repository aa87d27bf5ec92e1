"""An EMA of decay 0.9999 kept in bfloat16 never moves: 1e-4 of the distance is below half a step of the format."""

import copy
import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 6  # the average starts here
DECAY = 0.9999
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)
centers = torch.randn(3, 8)
ema = None

for step in range(260):
    if step == BAD_STEP:
        ema = copy.deepcopy(model).requires_grad_(False)
        if not HEALTHY:
            ema.bfloat16()  # <- fault
        start = [p.clone() for p in ema.parameters()]
    labels = torch.arange(24) % 3
    loss = nn.functional.cross_entropy(model(centers[labels] + torch.randn(24, 8)), labels)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    if ema is not None:
        with torch.no_grad():
            for average, p in zip(ema.parameters(), model.parameters(), strict=True):
                average.mul_(DECAY).add_(p, alpha=1 - DECAY)
        n_moved = sum(int((a != b).sum()) for a, b in zip(ema.parameters(), start, strict=True))
        print(f"step {step} moved {n_moved}")
