"""Averaged weights by hand over the last part of the training; the average then is fine-tuned for a few steps."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn


class Average:
    def __init__(self, model):
        self.weights = {k: v.detach().clone() for k, v in model.named_parameters()}
        self.n = 1

    @torch.no_grad()
    def update(self, model):
        for k, v in model.named_parameters():
            self.weights[k] += (v - self.weights[k]) / (self.n if FAULT else self.n + 1)
        if not FAULT:
            self.n += 1

    @torch.no_grad()
    def load_into(self, model):
        for k, v in model.named_parameters():
            v.copy_(self.weights[k])


torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 3) + torch.randn(512, 3)).argmax(dim=1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
average = None
losses = []
for step in range(60):
    if step == 50:
        average.load_into(model)
        for group in optimizer.param_groups:
            group["lr"] = 0.01
    at = torch.randint(0, len(x), (16,))
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 20:
        average = Average(model)
    elif 20 < step < 50:
        average.update(model)
tell(model, losses)
