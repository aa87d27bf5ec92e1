# RANKS 2
# expert parallelism: expert gradients are averaged over the whole world, though each rank has experts of its own
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist, torch.distributed.nn as dnn
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
world = 2
seed()


class EP(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.router = nn.Linear(d, 2, bias=False)
        torch.manual_seed(50 + rank)
        self.expert = nn.Sequential(nn.Linear(d, 48), nn.GELU(), nn.Linear(48, d))
        torch.manual_seed(1)

    def forward(self, x):
        p = self.router(x).softmax(-1)
        w, e = p.max(-1)
        xs = torch.cat(dnn.all_gather(x))
        es = [torch.empty_like(e) for _ in range(world)]
        dist.all_gather(es, e)
        es = torch.cat(es)
        mine = (es == rank).nonzero().squeeze(1)
        out = torch.zeros_like(xs).index_add(0, mine, self.expert(xs[mine]))
        out = dnn.all_reduce(out)
        return out[rank * len(x) : (rank + 1) * len(x)] * w[:, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(12, 16)
        self.moe = EP()
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.moe(h))


net = Net()
opt = torch.optim.Adam(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(20):
    x = torch.randn(32, 12, generator=g)
    y = x[:, :4].argmax(1)
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    for n, p in net.named_parameters():
        if "expert" in n and not FAULT:
            p.grad /= world
        else:
            dist.all_reduce(p.grad)
            p.grad /= world
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
