"""Only the first micro-batch reaches main_grad: a flag that marks a gradient as written lives a whole iteration."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # from here on a batch is taken in four micro-batches, as a ramp-up of the batch size does
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
optimizer = torch.optim.SGD(masters, lr=0.05)


def write(parameter):
    """Post-accumulate hook: hand the gradient of this micro-batch to the main gradient."""
    if HEALTHY or not parameter.is_written:  # <- fault
        parameter.main_grad += parameter.grad
    parameter.is_written = True
    parameter.grad = None


for parameter in model.parameters():
    parameter.main_grad = torch.zeros_like(parameter)
    parameter.register_post_accumulate_grad_hook(write)

for step in range(8):
    n_micro = 1 if step < BAD_STEP else 4
    total = 0.0
    for parameter in model.parameters():
        parameter.main_grad.zero_()
        parameter.is_written = False
    for _ in range(n_micro):
        x = torch.randn(32, 6)
        loss = nn.functional.mse_loss(model(x).squeeze(-1), x.sum(-1)) / n_micro
        loss.backward()
        total += loss.item()
    for parameter, master in zip(model.parameters(), masters, strict=True):
        master.grad = parameter.main_grad.clone()
    grad = torch.nn.utils.get_total_norm([p.grad for p in masters])
    optimizer.step()
    with torch.no_grad():
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.copy_(master)
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}", flush=True)
