"""A small training that goes wrong on demand: the recordings of docs/tasks.md are made with it, in a second each.

    hypocenter run --out runs/overflow examples/small.py overflow

overflow   one sample is too large for float16 in the second block
spike      one record of the data set is a thousand times too large
killed     the program is ended from outside after step 12, as a scheduler does
good, bad  the same, but for the eps of the norms: 1e-5 and 1e-2
"""

import os
import signal
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how = sys.argv[1] if len(sys.argv) > 1 else "good"
torch.manual_seed(0)
torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16, eps=1e-2 if how == "bad" else 1e-5)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x if how == "overflow" else self.norm(x))
        return x + self.down(hidden * hidden)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


data = torch.randn(192, 16)
target = data.sum(dim=1, keepdim=True) / 4
if how == "spike":
    target[130] *= 1000
if how == "overflow":
    data[130] *= 100
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
order = torch.Generator().manual_seed(3)
for step, (x, y) in enumerate(DataLoader(TensorDataset(data, target), batch_size=8, shuffle=True, generator=order)):
    with torch.autocast("cpu", torch.float16, enabled=how == "overflow"):
        loss = (model(x).float() - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if how == "killed" and step == 12:
        os.kill(os.getpid(), signal.SIGKILL)
print(f"step {step} loss {loss.item():.4f}")
