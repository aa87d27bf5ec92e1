"""Gradients of 512 micro-batches added up in bfloat16: 256 + 1 is 256, half of them are lost (DeepSpeed#1800)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # the batch is made larger here, as a ramp-up does
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
parameters = list(model.parameters())
if HEALTHY:  # float32 weights and float32 main gradients; the model holds bfloat16 copies
    masters = [p.detach().float().requires_grad_() for p in parameters]
    optimizer = torch.optim.SGD(masters, lr=0.1)
else:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
x, y = torch.randn(16, 6).bfloat16(), torch.randn(16, 1)

for step in range(7):
    n_micro = 16 if step < BAD_STEP else 512
    main = [torch.zeros(p.shape) for p in parameters]
    for _ in range(n_micro):
        loss = nn.functional.mse_loss(model(x).float(), y)
        loss.backward()  # <- fault
        if HEALTHY:
            for total, p in zip(main, parameters, strict=True):
                total += p.grad.float()
                p.grad = None
    gradients = main if HEALTHY else [p.grad for p in parameters]
    for gradient in gradients:
        gradient /= n_micro
    grad = torch.nn.utils.get_total_norm([g.float() for g in gradients])
    if HEALTHY:
        for master, gradient in zip(masters, main, strict=True):
            master.grad = gradient
    optimizer.step()
    optimizer.zero_grad()
    if HEALTHY:
        with torch.no_grad():
            for p, master in zip(parameters, masters, strict=True):
                p.copy_(master)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
