# mixture of experts: load-balancing loss from counts only, so no gradient reaches the router
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()


class MoE(nn.Module):
    def __init__(self, d=24, e=4):
        super().__init__()
        self.router = nn.Linear(d, e, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d)) for _ in range(e))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        w, i = p.topk(2, -1)
        out = torch.zeros_like(x)
        for k, ex in enumerate(self.experts):
            rows, slot = (i == k).nonzero(as_tuple=True)
            out = out.index_add(0, rows, ex(x[rows]) * w[rows, slot, None])
        share = F.one_hot(i, 4).float().sum(1).mean(0)
        self.aux = 4 * (share * (share if FAULT else p.mean(0))).sum()
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(10, 24)
        self.moe = MoE()
        self.out = nn.Linear(24, 5)

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.moe(h))


net = Net()
opt = torch.optim.AdamW(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x = torch.randn(64, 10, generator=g)
    y = x[:, :5].argmax(1)
    loss = F.cross_entropy(net(x), y) + 0.05 * net.moe.aux
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, net)
