# RANKS 2
# DiLoCo: inner AdamW on each rank, every 5 steps an outer Nesterov step with averaged pseudo-gradients
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(0)
m = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
outer = [p.detach().clone() for p in m.parameters()]
oo = torch.optim.SGD(outer, 0.7, momentum=0.9, nesterov=True)
opt = torch.optim.AdamW(m.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(40):
    x = torch.randn(16, 16, generator=g)
    loss = F.cross_entropy(m(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 4:
        for o, p in zip(outer, m.parameters()):
            d = o - p.detach()
            dist.all_reduce(d)
            o.grad = d / 2
        oo.step()
        with torch.no_grad():
            for o, p in zip(outer, m.parameters()):
                p.copy_(o)
final(loss, m)
dist.destroy_process_group()
