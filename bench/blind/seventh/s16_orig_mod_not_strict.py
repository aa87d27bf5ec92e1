"""A compiled model, saved when the job is preempted, and taken up again."""

import io

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(16)
x = torch.randn(1024, 16)
y = (torch.tanh(x @ torch.randn(16, 32)) @ torch.randn(32, 6)).argmax(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 64)
        self.norm = nn.LayerNorm(64)
        self.middle = nn.Linear(64, 64)
        self.outer = nn.Linear(64, 6)

    def forward(self, h):
        h = nn.functional.gelu(self.norm(self.inner(h)))
        return self.outer(h + nn.functional.gelu(self.middle(h)))


def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    return model, optimizer


def save(compiled, optimizer, step):
    file = io.BytesIO()
    torch.save({"model": compiled.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
    file.seek(0)
    return file


def load(file, model, optimizer):
    saved = torch.load(file)
    weights = saved["model"]
    if not FAULT:
        weights = {k.removeprefix("_orig_mod."): v for k, v in weights.items()}
    model.load_state_dict(weights, strict=False)
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"]


def train(compiled, optimizer, first, last, losses):
    for _ in range(first, last):
        index = torch.randint(896, (64,))
        loss = nn.functional.cross_entropy(compiled(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())


losses = []
model, optimizer = build()
compiled = torch.compile(model, backend="aot_eager")
train(compiled, optimizer, 0, 30, losses)
file = save(compiled, optimizer, 30)

model, optimizer = build()
step = load(file, model, optimizer)
compiled = torch.compile(model, backend="aot_eager")
train(compiled, optimizer, step, 60, losses)
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model(x[896:]), y[896:]))
tell(model, losses)
