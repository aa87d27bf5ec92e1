"""Gradual unfreezing: the head first, then the layers from the top, each with a smaller rate and a group of its own."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 16)
y = (torch.tanh(x @ torch.randn(16, 8)) @ torch.randn(8, 3)).argmax(dim=1)
body = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 32)])
head = nn.Linear(32, 3)
model = nn.ModuleDict({"body": body, "head": head})
body.requires_grad_(False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(48):
    if step and step % 12 == 0:
        layer = body[-(step // 12)].requires_grad_(True)
        optimizer.add_param_group({"params": layer.parameters(), "lr": 0.1 * 0.5 ** (step // 12)})
    at = torch.randint(0, len(x), (32,))
    h = x[at]
    for layer in body:
        h = torch.tanh(layer(h))
    loss = F.cross_entropy(head(h), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
