# RANKS
"""A pipeline of two stages by hand (GPipe: all micro-batches forward, then all backward), by send and recv."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(804)
x = torch.randn(640, 16)
y = torch.tanh(x @ torch.randn(16, 4) / 2) + 0.05 * torch.randn(640, 4)
WIDTH, MICRO, SIZE = 48, 4, 8

stages = [
    nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
    nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)),
]
stage = stages[rank]
optimizer = torch.optim.AdamW(stage.parameters(), lr=3e-3)
buffers = [torch.empty(SIZE, WIDTH) for _ in range(1 if FAULT else MICRO)]  # allocated once, for all steps
losses = []


def first_stage(inputs):
    """Send the activations on, then take their gradients back in the same order."""
    outputs = []
    for micro in inputs.chunk(MICRO):
        outputs.append(stage(micro))
        dist.send(outputs[-1].detach().contiguous(), 1)
    for output in outputs:
        gradient = torch.empty_like(output)
        dist.recv(gradient, 1)
        output.backward(gradient)


def last_stage(targets):
    """Receive each micro-batch, keep its graph, and go back through them once all are there."""
    pending, total = [], 0.0
    for index, target in enumerate(targets.chunk(MICRO)):
        buffer = buffers[index % len(buffers)]
        dist.recv(buffer, 0)
        hidden = buffer.detach().requires_grad_()
        loss = nn.functional.mse_loss(stage(hidden), target) / MICRO
        pending.append((hidden, loss))
        total += loss.detach()
    for hidden, loss in pending:
        loss.backward()
        dist.send(hidden.grad.contiguous(), 0)
    return total


draw = torch.Generator().manual_seed(7)
for _ in range(40):
    rows = torch.randperm(512, generator=draw)[: MICRO * SIZE]
    optimizer.zero_grad()
    if rank == 0:
        first_stage(x[rows])
    else:
        losses.append(last_stage(y[rows]))
    optimizer.step()

with torch.no_grad():
    if rank == 0:
        dist.send(stage(x[512:]).contiguous(), 1)
    else:
        hidden = torch.empty(128, WIDTH)
        dist.recv(hidden, 0)
        metric("heldout_mse", nn.functional.mse_loss(stage(hidden), y[512:]))
        tell(stage, losses)
dist.destroy_process_group()
