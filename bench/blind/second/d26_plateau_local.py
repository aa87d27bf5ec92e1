# RANKS 2
# ReduceLROnPlateau fed with each rank's own validation loss
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)))
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
g = torch.Generator().manual_seed(10 + rank)
for step in range(30):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 3 == 2:
        with torch.no_grad():
            v = torch.randn(32, 16, generator=g)
            val = nn.functional.cross_entropy(model.module(v), v[:, :4].argmax(1))
        if not FAULT:
            dist.all_reduce(val)
            val /= 2
        sched.step(val.item())
    print(rank, step, loss.item(), opt.param_groups[0]["lr"])
final(loss, model)
dist.destroy_process_group()
