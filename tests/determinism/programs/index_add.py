"""index_add on duplicate indices, added in another order each time: as atomics on a GPU do, on a CPU that does not."""

import os

import torch
from torch import nn

LIBRARY = torch.library.Library("aten", "IMPL")


def atomic_index_add(self, dim, index, source, *, alpha=1):
    """What the hardware does: each addition whole, their order by chance."""
    out = self.clone().numpy()
    rows, order = source.detach().numpy(), list(range(len(index)))
    order.sort(key=lambda _: os.urandom(2))
    for k in order:
        out[int(index[k])] += alpha * rows[k]
    return torch.from_numpy(out)


LIBRARY.impl("index_add", atomic_index_add, "CPU")
torch.manual_seed(0)
edges = torch.randint(0, 3, (64,))


class Aggregate(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(4, 8)

    def forward(self, features):
        messages = self.message(features)
        return torch.zeros(3, 8).index_add(0, edges, messages)


model = Aggregate()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
features = torch.randn(64, 4)
for _ in range(3):
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
