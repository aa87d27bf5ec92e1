"""accelerate: accumulation over four micro-batches, and a linear schedule over the optimizer's steps."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from kit import FAULT, metric, tell
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_linear_schedule_with_warmup

ACCUMULATE, EPOCHS = 4, 6
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True)
torch.manual_seed(0)
x = torch.randn(576, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=8, shuffle=True)
steps = EPOCHS * len(loader) // ACCUMULATE
schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if not FAULT:
    schedule = accelerator.prepare(schedule)
losses = []
for epoch in range(EPOCHS):
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.item())
with torch.no_grad():
    metric("loss", F.cross_entropy(model(x[512:]), y[512:]))
tell(model, losses)
