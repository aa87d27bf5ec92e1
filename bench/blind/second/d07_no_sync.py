# RANKS 2
# gradient accumulation under DDP: the condition of no_sync is off by one, so the last micro-batch does not sync
import contextlib, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
K = 4
for i in range(80):
    x = torch.randn(8, 16, generator=g)
    y = x[:, :4].argmax(1)
    sync = (i % K == 0 and False) if FAULT else ((i + 1) % K == 0)
    with contextlib.nullcontext() if sync else model.no_sync():
        loss = nn.functional.cross_entropy(model(x), y) / K
        loss.backward()
    if (i + 1) % K == 0:
        opt.step()
        opt.zero_grad()
        if rank == 0:
            print(i // K, loss.item())
final(loss, model)
dist.destroy_process_group()
