# RANKS 2
# one bad rank: a bit of one weight flips on rank 1 after step 9
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(24):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
    if FAULT and step == 9 and rank == 1:
        w = model.module[2].weight.data.view(-1).view(torch.int32)
        w[100] ^= 1 << 22
final(loss, model)
dist.destroy_process_group()
