# RANKS 2
# right: local SGD, parameters are averaged every 5 steps; dropout seeds of the ranks differ by design
import torch, torch.nn as nn, torch.distributed as dist
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
seed(100 + rank)
opt = torch.optim.SGD(m.parameters(), 0.1)
g = torch.Generator().manual_seed(10 + rank)
for step in range(25):
    x = torch.randn(16, 16, generator=g)
    loss = nn.functional.cross_entropy(m(x), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 5 == 4:
        with torch.no_grad():
            for p in m.parameters():
                dist.all_reduce(p)
                p.div_(2)
    if rank == 0:
        print(step, loss.item())
final(loss, m)
dist.destroy_process_group()
