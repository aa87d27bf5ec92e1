"""No gradient arrives any more: nothing overflows, and the scaler doubles its scale without end."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 8  # from here on the labels are all "ignore me", and the mask makes the loss exactly 0
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=2)
centers = torch.randn(4, 12)

for step in range(64):
    labels = torch.arange(16) % 4
    keep = torch.ones(16)
    if step >= BAD_STEP and not HEALTHY:
        keep = torch.zeros(16)  # <- fault
    with torch.autocast("cpu", torch.float16):
        logits = model(centers[labels] + 0.3 * torch.randn(16, 12))
        losses = nn.functional.cross_entropy(logits.float(), labels, reduction="none")
        loss = (losses * keep).sum() / keep.sum().clamp(min=1.0)
    scaler.scale(loss).backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]) / scaler.get_scale()
    grad = torch.nan_to_num(grad, 0.0, posinf=0.0)  # the scaler skips it: it had tried a higher scale
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
