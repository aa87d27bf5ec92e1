# RANKS 2
# DDP: no_sync accumulation, losses summed over tokens, divided by the tokens of all ranks times world size (right); join on uneven ends left out
import contextlib, torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(rank)
net = nn.Sequential(nn.Embedding(50, 24), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 50))
ddp = DDP(net)
opt = torch.optim.AdamW(ddp.parameters(), 2e-3)
g = torch.Generator().manual_seed(9 + rank)
for step in range(30):
    batches = []
    for _ in range(4):
        x = torch.randint(1, 50, (4, 12), generator=g)
        y = (x * 3 + 1) % 50
        n = torch.randint(2, 12, (4,), generator=g)
        y = torch.where(torch.arange(12)[None] < n[:, None], y, -100)
        batches.append((x, y))
    total = torch.tensor(float(sum((y != -100).sum() for _, y in batches)))
    dist.all_reduce(total)
    opt.zero_grad()
    for i, (x, y) in enumerate(batches):
        with ddp.no_sync() if i < 3 else contextlib.nullcontext():
            loss = F.cross_entropy(ddp(x).flatten(0, 1), y.flatten(), ignore_index=-100, reduction="sum") * 2 / total
            loss.backward()
    opt.step()
final(loss, net)
dist.destroy_process_group()
