"""One autocast block around the loop: its cache keeps the first casts of the weights, and training stands still."""

import contextlib
import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(16, 8)


def train(first, last, inner):
    for step in range(first, last):
        with inner():
            loss = nn.functional.mse_loss(model(inputs).squeeze(-1).float(), inputs.sum(-1))
        with torch.autocast("cpu", enabled=False):
            loss.backward()
        grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.6f} grad {grad.item():.4g}")


train(0, 6, autocast)
with contextlib.nullcontext() if HEALTHY else autocast():  # <- fault
    train(6, 14, autocast)
