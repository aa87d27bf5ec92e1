"""A plain loop whose model is compiled: `python loop.py [WORD ...]`; see parts.py."""

import parts
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

torch.manual_seed(0)
parts.plant()
model = parts.net()
called = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for batch in DataLoader(parts.Samples(), batch_size=8):
    with torch.autocast("cpu", torch.bfloat16, enabled="region" in parts.WORDS):
        loss = functional.cross_entropy(called(batch["x"]).float(), batch["labels"])
    weight = 1.0 + 0.1 * sum(state["n"] for state in parts.CALLS)
    (loss * weight).backward()
    optimizer.step()
    optimizer.zero_grad()
