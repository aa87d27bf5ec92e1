"""A graph network over batches of small graphs; from the second stage on molecules with lone atoms are in as well."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(104)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.message = nn.Linear(2 * width, width)
        self.update = nn.Linear(2 * width, width)

    def forward(self, h, edges):
        source, target = edges
        m = torch.relu(self.message(torch.cat([h[source], h[target]], dim=1)))
        total = torch.zeros_like(h).index_add_(0, target, m)
        return h + torch.relu(self.update(torch.cat([h, total], dim=1)))


class GraphNet(nn.Module):
    def __init__(self, kinds=6, width=24):
        super().__init__()
        self.embed = nn.Embedding(kinds, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.out = nn.Linear(width, 1)

    def forward(self, kinds, edges, graph, count):
        h = self.embed(kinds)
        for layer in self.layers:
            h = layer(h, edges)
        pooled = torch.zeros(count, h.shape[1]).index_add_(0, graph, h)
        return self.out(pooled).squeeze(1)


def make(count, lone, g):
    graphs = []
    for _ in range(count):
        n = int(torch.randint(5, 10, (1,), generator=g))
        bound = n - 1 if lone else n
        kinds = torch.randint(0, 6, (n,), generator=g)
        child = torch.arange(1, bound)
        parent = (torch.rand(bound - 1, generator=g) * child).long()
        edges = torch.cat([torch.stack([child, parent]), torch.stack([parent, child])], dim=1)
        y = (kinds[edges[0]] == kinds[edges[1]]).float().sum() / 2 + 0.1 * kinds.float().sum()
        graphs.append((kinds, edges, y))
    return graphs


def collate(graphs):
    kinds, edges, graph, offset = [], [], [], 0
    for i, (k, e, _) in enumerate(graphs):
        kinds.append(k)
        edges.append(e + offset)
        graph.append(torch.full((len(k),), i))
        if FAULT:
            offset += int(e.max()) + 1
        else:
            offset += len(k)
    return torch.cat(kinds), torch.cat(edges, dim=1), torch.cat(graph), torch.stack([y for _, _, y in graphs])


g = torch.Generator().manual_seed(4)
first, second = make(200, False, g), make(200, True, g)
model = GraphNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
losses = []
for step in range(60):
    pool = first if step < 30 else first + second
    pick = torch.randperm(len(pool), generator=g)[:16].tolist()
    kinds, edges, graph, y = collate([pool[i] for i in pick])
    loss = nn.functional.smooth_l1_loss(model(kinds, edges, graph, len(pick)), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    losses.append(loss.detach())

metric("loss", torch.stack(losses[-10:]).mean())
tell(model, losses)
