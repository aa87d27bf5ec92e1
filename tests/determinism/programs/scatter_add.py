"""Everything is seeded; duplicate indices are added by several threads at once, in no fixed order."""

import torch
from torch import nn

torch.set_num_threads(2)
torch.manual_seed(0)
N_NODES, N_EDGES = 7, 200_000
edges = torch.randint(0, N_NODES, (N_EDGES,))


class Aggregate(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(4, 8)

    def forward(self, features):
        messages = self.message(features)
        total = torch.zeros(N_NODES, 8)
        return total.index_put((edges,), messages, accumulate=True)


model = Aggregate()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
features = torch.randn(N_EDGES, 4)
for _ in range(3):
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
