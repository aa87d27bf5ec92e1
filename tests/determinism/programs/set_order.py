"""The layers are made in the order of a set of strings, which PYTHONHASHSEED decides."""

import torch
from torch import nn

torch.manual_seed(0)
names = {"query", "key", "value", "output", "gate", "up", "down", "norm"}
model = nn.ModuleDict({name: nn.Linear(8, 8) for name in names})
for name in names:
    torch.nn.init.normal_(model[name].weight, std=0.01 * len(name))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.randn(4, 8)
for _ in range(3):
    x = data
    for name in sorted(names):
        x = torch.tanh(model[name](x))
    loss = x.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
