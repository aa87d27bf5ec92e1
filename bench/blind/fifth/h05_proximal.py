"""A sparse net: after each step soft thresholding, and the output weights stay in a ball."""

import torch
import torch.nn.functional as F
from kit import tell
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 40)
y = torch.tanh(x[:, :3].sum(dim=1, keepdim=True))
model = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
losses = []
for step in range(60):
    at = torch.randint(0, len(x), (32,))
    loss = F.mse_loss(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        w = model[0].weight
        w.copy_(F.softshrink(w, 0.05 * 0.01))
        out = model[2].weight
        out.mul_((1.5 / out.norm()).clamp(max=1.0))
    losses.append(loss.item())
tell(model, losses)
