"""Training for eight bits: activations pass a fake quantiser whose range follows the data; the job is resumed once."""

import os

import torch
from kit import FAULT, OUT, metric, tell
from torch import nn

torch.manual_seed(111)
SAVED = os.path.join(OUT, "quantised.pt")


class FakeQuantise(nn.Module):
    """Symmetric, four bits; the range is a moving maximum which is set by the first batch, then held after a warm-up."""

    def __init__(self, bits=4, momentum=0.1, warmup=20):
        super().__init__()
        self.levels, self.momentum, self.warmup = 2 ** (bits - 1) - 1, momentum, warmup
        if FAULT:
            self.range, self.seen = torch.tensor(1.0), torch.tensor(0)
        else:
            self.register_buffer("range", torch.tensor(1.0))
            self.register_buffer("seen", torch.tensor(0))
        self.observe = True

    def forward(self, x):
        if self.training and self.observe:
            peak = x.detach().abs().max()
            self.range = peak if self.seen == 0 else (1 - self.momentum) * self.range + self.momentum * peak
            self.seen = self.seen + 1
        scale = self.range / self.levels
        held = x.clamp(-self.range, self.range)
        return held + ((held / scale).round() * scale - held).detach()


def build():
    model = nn.Sequential(
        nn.Linear(16, 40), nn.ReLU(), FakeQuantise(), nn.Linear(40, 40), nn.ReLU(), FakeQuantise(), nn.Linear(40, 4)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=5e-3)


def observing(model, on):
    for module in model.modules():
        if isinstance(module, FakeQuantise):
            module.observe = on


x = 3 * torch.randn(2048, 16)
y = torch.tanh(x @ torch.randn(16, 8) / 3).matmul(torch.randn(8, 4)).argmax(dim=1)
model, optimizer = build()
losses, step = [], 0
while step < 60:
    if step == 30:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, SAVED)
        model, optimizer = build()
        saved = torch.load(SAVED)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    observing(model, step < 20)
    rows = torch.arange(32 * step, 32 * step + 32)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    step += 1

model.eval()
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(x[1920:]), y[1920:]))
tell(model, losses)
