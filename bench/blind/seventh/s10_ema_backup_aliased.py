"""Averaged weights, swapped in for each evaluation and out again."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(10)
x = torch.randn(832, 16)
y = (torch.tanh(x @ torch.randn(16, 24)) @ torch.randn(24, 5)).argmax(1)


class Ema:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.backup = {}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.shadow[name].lerp_(p, 1 - self.decay)

    @torch.no_grad()
    def apply_shadow(self, model):
        for name, p in model.named_parameters():
            if FAULT:
                self.backup[name] = p.data
            else:
                self.backup[name] = p.data.clone()
            p.data.copy_(self.shadow[name])

    @torch.no_grad()
    def restore(self, model):
        for name, p in model.named_parameters():
            p.data.copy_(self.backup[name])
        self.backup = {}


def evaluate(model):
    model.eval()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x[704:]), y[704:])
    model.train()
    return loss


model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
ema = Ema(model, decay=0.95)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:704], y[:704]), batch_size=64, shuffle=True)
losses, step = [], 0
for _epoch in range(5):
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update(model)
        losses.append(loss.detach())
        step += 1
        if step % 16 == 0:
            ema.apply_shadow(model)
            evaluate(model)
            ema.restore(model)
metric("loss", evaluate(model))
tell(model, losses)
