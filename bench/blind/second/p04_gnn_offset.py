# molecules in one batch: edge indices of a graph need the offset of its first node
import torch, torch.nn as nn
from c import FAULT, seed, final

seed()


class GCN(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.l1 = nn.Linear(6, d)
        self.l2 = nn.Linear(d, d)
        self.head = nn.Linear(d, 1)

    def propagate(self, h, edges):
        out = torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]])
        deg = torch.zeros(len(h)).index_add_(0, edges[1], torch.ones(edges.shape[1])).clamp(min=1)
        return out / deg[:, None]

    def forward(self, x, edges, graph, n):
        h = torch.relu(self.l1(x))
        h = h + torch.relu(self.l2(self.propagate(h, edges)))
        pooled = torch.zeros(n, h.shape[1]).index_add_(0, graph, h)
        return self.head(pooled).squeeze(-1)


def collate(g, n=8):
    xs, es, gs, ys, first = [], [], [], [], 0
    for i in range(n):
        k = int(torch.randint(4, 9, (), generator=g))
        x = torch.randn(k, 6, generator=g)
        e = torch.stack([torch.arange(k), (torch.arange(k) + 1) % k])
        y = (x[e[0]] * x[e[1]]).sum()
        xs.append(x)
        gs.append(torch.full((k,), i))
        ys.append(y / k)
        es.append(e if FAULT else e + first)
        first += k
    return torch.cat(xs), torch.cat(es, 1), torch.cat(gs), torch.stack(ys)


net = GCN()
opt = torch.optim.Adam(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(2)
for step in range(40):
    x, e, b, y = collate(g)
    loss = nn.functional.mse_loss(net(x, e, b, 8), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, net)
