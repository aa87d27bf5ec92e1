"""Activation checkpointing (`--reentrant` for the old kind): the forward of `ffn` runs again inside backward."""

import sys

import torch
from overflowing import Classifier, make
from torch import nn
from torch.utils.checkpoint import checkpoint

BAD = None if "--healthy" in sys.argv else (3, 1)
REENTRANT = "--reentrant" in sys.argv
torch.manual_seed(0)
torch.set_num_threads(1)


class Checkpointed(Classifier):
    def forward(self, x):
        x = x.requires_grad_(REENTRANT)  # the reentrant kind needs an input with a gradient
        return self.head(self.norm(x + checkpoint(self.ffn, x, use_reentrant=REENTRANT)))


model = Checkpointed()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(5):
    total = 0.0
    for microbatch in range(2):
        x, y = make(step, microbatch, BAD)
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(model(x).float(), y) / 2
        loss.backward()
        total += loss.item()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
