"""clip_grad_norm_ before unscale_: what is clipped is 65,536 times too large, so the update is max_norm / scale."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 6  # an accelerated path takes over, which unscales after it has clipped
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
centers = 0.3 * torch.randn(3, 8)

for step in range(16):
    labels = torch.arange(24) % 3
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + 0.1 * torch.randn(24, 8))
        loss = nn.functional.cross_entropy(logits.float(), labels)
    scaler.scale(loss).backward()
    if HEALTHY or step < BAD_STEP:
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- fault
    before = [p.detach().clone() for p in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    moved = torch.stack([(p - b).norm() for p, b in zip(model.parameters(), before, strict=True)]).norm() / 0.02
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {moved.item():.4g}")
