"""A model compiled with fullgraph=True: the failure is blamed by an eager replay."""

import sys

import torch
from overflowing import Classifier, make
from torch import nn

BAD = None if "--healthy" in sys.argv else (3, 1)
torch.manual_seed(0)
torch.set_num_threads(1)

model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
compiled = torch.compile(model, fullgraph=True)

for step in range(5):
    total = 0.0
    for microbatch in range(2):
        x, y = make(step, microbatch, BAD)
        with torch.autocast("cpu", torch.float16):
            logits = compiled(x)
        loss = nn.functional.cross_entropy(logits.float(), y) / 2
        loss.backward()
        total += loss.item()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
