"""GNN over a batch of graphs: the collate function does not shift the node indices."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from c import FAULT, finish

torch.manual_seed(0)


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1, self.lin2, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 2)

    def prop(self, x, ei):
        src, dst = ei
        deg = torch.ones(len(x)).index_add_(0, dst, torch.ones(len(dst)))
        return (x + torch.zeros_like(x).index_add_(0, dst, x[src])) / deg[:, None]

    def forward(self, x, ei, batch, n):
        x = F.relu(self.lin1(self.prop(x, ei)))
        x = F.relu(self.lin2(self.prop(x, ei)))
        pooled = torch.zeros(n, x.shape[1]).index_add_(0, batch, x)
        return self.out(pooled / torch.bincount(batch, minlength=n)[:, None])


def collate(graphs):
    xs, eis, batch, ys, off = [], [], [], [], 0
    for i, (x, ei, y) in enumerate(graphs):
        xs.append(x)
        eis.append(ei if FAULT else ei + off)  # FAULT: no offset
        batch.append(torch.full((len(x),), i))
        ys.append(y)
        off += len(x)
    return torch.cat(xs), torch.cat(eis, 1), torch.cat(batch), torch.tensor(ys)


def graph(i):
    n = 6 + i % 5
    y = i % 2
    x = torch.randn(n, 8)
    ei = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n]) if y else torch.randint(0, n, (2, n))
    if y:
        x[ei[1], 0] = x[ei[0], 0]
    return x, ei, y


loader = DataLoader([graph(i) for i in range(160)], batch_size=8, shuffle=True, collate_fn=collate)
model = GCN()
opt = torch.optim.Adam(model.parameters(), 5e-3)
losses = []
for epoch in range(2):
    for x, ei, batch, y in loader:
        loss = F.cross_entropy(model(x, ei, batch, len(y)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
finish(losses, model)
