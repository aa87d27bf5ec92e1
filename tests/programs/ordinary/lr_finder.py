"""A learning rate range test, then the weights put back, training with a checkpoint saved and loaded in the middle."""

import tempfile
from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 32), nn.Linear(32, 1)

    def forward(self, x):
        y = torch.nn.functional.elu(self.a(x))  # plant: forward
        return self.b(y)


def train_step(model, opt, x, y):  # turn
    scaled = x * 0.5  # plant: data
    out = model(scaled)  # plant: output
    loss = nn.functional.l1_loss(out, y)  # plant: loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


torch.manual_seed(27)
x, y = torch.randn(64, 5), torch.randn(64, 1)
model = Net()
opt = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9)
with tempfile.TemporaryDirectory() as folder:
    start = Path(folder, "start.pt")
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, start)
    finder = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=3)
    for _ in range(6):
        print("find", opt.param_groups[0]["lr"], train_step(model, opt, x, y))
        finder.step()
    saved = torch.load(start)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    for group in opt.param_groups:
        group["lr"] = 1e-2
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
    for epoch in range(5):
        loss = train_step(model, opt, x, y)
        plateau.step(loss)
        print("train", epoch, loss)
