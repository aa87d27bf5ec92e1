# RANKS 2
# GAN under DDP, ranks seeded alike: the generator's noise is the same on all of them, the real data are each rank's own
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
seed(0)
G, D = (
    DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))),
    DDP(nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))),
)
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
g = torch.Generator().manual_seed(5 + dist.get_rank())
for step in range(30):
    f = G(torch.randn(32, 8))
    real = torch.randn(32, 2, generator=g) + 2
    o = D(torch.cat([f.detach(), real]))
    ld = F.softplus(o[:32]).mean() + F.softplus(-o[32:]).mean()
    od.zero_grad()
    ld.backward()
    od.step()
    D.requires_grad_(False)
    og.zero_grad()
    lg = F.softplus(-D.module(f)).mean()
    lg.backward()
    og.step()
    D.requires_grad_(True)
final(lg, G, D)
dist.destroy_process_group()
