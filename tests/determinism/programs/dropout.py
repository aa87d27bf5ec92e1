"""The weights are made under a seed of their own; dropout draws from the generator that nobody seeded."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.drop = nn.Dropout(0.1)
        self.outer = nn.Linear(16, 1)

    def forward(self, x):
        hidden = torch.relu(self.inner(x))
        hidden = self.drop(hidden)
        return self.outer(hidden)


with torch.random.fork_rng():
    torch.manual_seed(0)
    model = Block()
    data, labels = torch.randn(32, 8), torch.randn(32, 1)

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(4):
    loss = nn.functional.mse_loss(model(data), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
