# RANKS 2
# A physics-informed net over two ranks: boundary points are the same on both, collocation points are each rank's own
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
r = dist.get_rank()
seed()
net = DDP(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)))
o = torch.optim.Adam(net.parameters(), 2e-3)
torch.manual_seed(100 + r)
xb = torch.tensor([[0.0], [1.0]])
ub = torch.tensor([[0.0], [0.0]])
for step in range(50):
    xc = torch.rand(64, 1, requires_grad=True)
    u = net(torch.cat([xc, xb]))
    uc, ubp = u[:64], u[64:]
    (d,) = torch.autograd.grad(uc.sum(), xc, create_graph=True)
    (dd,) = torch.autograd.grad(d.sum(), xc, create_graph=True)
    loss = (dd + torch.pi**2 * torch.sin(torch.pi * xc)).square().mean() + 10 * (ubp - ub).square().mean()
    o.zero_grad()
    loss.backward()
    o.step()
final(loss, net)
dist.destroy_process_group()
