# RANKS 2
# right: a ZeRO-1 by hand, each rank steps its half of the parameters and broadcasts them
import torch, torch.nn as nn, torch.distributed as dist
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
m = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
ps = list(m.parameters())
mine = ps[rank::2]
opt = torch.optim.AdamW(mine, 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(25):
    x = torch.randn(16, 16, generator=g)
    loss = nn.functional.cross_entropy(m(x), x[:, :4].argmax(1))
    m.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.view(-1) for p in ps])
    dist.all_reduce(flat)
    flat /= 2
    i = 0
    for p in ps:
        p.grad.copy_(flat[i : i + p.numel()].view_as(p))
        i += p.numel()
    total = nn.utils.clip_grad_norm_(ps, 1.0)
    opt.step()
    for k, p in enumerate(ps):
        dist.broadcast(p.data, k % 2)
    if rank == 0:
        print(step, loss.item())
final(loss, m)
dist.destroy_process_group()
