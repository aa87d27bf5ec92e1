"""Gradients are clipped after the step that uses them."""

import torch
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)
lstm = nn.LSTM(4, 24, batch_first=True)
head = nn.Linear(24, 1)
model = nn.ModuleDict({"lstm": lstm, "head": head})
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(50):
    x = torch.randn(16, 12, 4)
    y = x[:, :, 0].sum(1, keepdim=True)
    out, _ = lstm(x)
    loss = (head(out[:, -1]) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    if not FAULT:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if FAULT:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FAULT: after the step
    losses.append(loss.item())
finish(losses, model)
