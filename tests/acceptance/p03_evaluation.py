"""Evaluation under no_grad before training, between steps and between micro-batches: forwards that are no steps."""

import sys

import torch
from overflowing import Classifier, make
from torch import nn

BAD = None if "--healthy" in sys.argv else (3, 1)
torch.manual_seed(0)
torch.set_num_threads(1)

model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def evaluate(n):
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        losses = [nn.functional.cross_entropy(model(x).float(), y) for x, y in (make(99, i, None) for i in range(n))]
    model.train()
    return torch.stack(losses).mean().item()


evaluate(3)
for step in range(5):
    total = 0.0
    for microbatch in range(2):
        x, y = make(step, microbatch, BAD)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), y) / 2
        if microbatch == 0:
            evaluate(1)  # between forward and backward
        loss.backward()
        total += loss.item()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
    evaluate(2 + step)
