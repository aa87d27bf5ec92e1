"""Healthy: an uninitialised buffer holds NaN and is overwritten before anything reads it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Scatter(nn.Module):
    """Writes rows in another order into a workspace."""

    def __init__(self, n, d):
        super().__init__()
        self.register_buffer("order", torch.randperm(n))
        self.d = d

    def forward(self, x):
        workspace = torch.full((x.shape[0], self.d), float("nan"))  # what torch.empty may hold
        return workspace.index_copy(0, self.order, x)


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.register_buffer("cache", torch.full((16, d), float("nan")))
        self.encode = nn.Linear(d, d)
        self.scatter = Scatter(16, d)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        self.cache.copy_(x)
        return self.head(torch.tanh(self.scatter(self.encode(self.cache)))).squeeze(-1)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
direction = torch.randn(8) / 3.0

for step in range(6):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x)[model.scatter.order], x @ direction)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
