"""An accelerate loop with float16 autocast and accumulation."""

import sys

import torch
from accelerate import Accelerator
from overflowing import ROWS, Classifier, Rows
from torch import nn

BAD = None if "--healthy" in sys.argv else (3, 0)
STEPS, ACCUMULATE = 5, 2
torch.manual_seed(0)
torch.set_num_threads(1)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Rows(STEPS, ACCUMULATE, BAD), batch_size=ROWS)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

step, total = 0, 0.0
for batch in loader:
    with accelerator.accumulate(model):
        with torch.autocast("cpu", torch.float16):  # mixed_precision="fp16" is without effect on a CPU
            loss = nn.functional.cross_entropy(model(batch["x"]).float(), batch["labels"])
        accelerator.backward(loss)
        total += loss.item() / ACCUMULATE
        if accelerator.sync_gradients:
            grad = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
            step, total = step + 1, 0.0
        optimizer.step()
        optimizer.zero_grad()
