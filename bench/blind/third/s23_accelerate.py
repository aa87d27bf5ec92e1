"""accelerate: the optimizer was not prepared, so accumulate() does not hold back its steps."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from c import FAULT, finish

torch.manual_seed(0)
acc = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
x = torch.randn(640, 12)
y = x[:, :3].argmax(1)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
if FAULT:
    model, loader = acc.prepare(model, loader)  # FAULT: opt is missing
else:
    model, opt, loader = acc.prepare(model, opt, loader)
losses = []
for xb, yb in loader:
    with acc.accumulate(model):
        loss = F.cross_entropy(model(xb), yb)
        acc.backward(loss)
        opt.step()
        opt.zero_grad()
    losses.append(loss.item())
finish(losses, acc.unwrap_model(model))
