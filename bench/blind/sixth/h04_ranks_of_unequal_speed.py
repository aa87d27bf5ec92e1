# RANKS
"""Right: rank 0 takes 20 samples and rank 1 takes 12; DDP's mean is put right by weights; a body is unfrozen with a new DDP."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import metric, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
body = nn.Sequential(nn.Linear(16, 48), nn.ReLU())
net = nn.Sequential(body, nn.Linear(48, 4))
body.requires_grad_(False)
model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
mine, all_of_us = (20, 12)[rank], 32
shared = torch.Generator().manual_seed(7)
losses = []
for step in range(70):
    if step == 20:
        body.requires_grad_(True)
        model = DDP(net)
    at = torch.randperm(512, generator=shared)[:all_of_us]
    at = at[:20] if rank == 0 else at[20:]
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    (loss * 2 * mine / all_of_us).backward()
    optimizer.step()
    losses.append(loss.item())
if rank == 0:
    metric("loss", F.cross_entropy(net(x), y))
    tell(net, losses)
dist.barrier()
dist.destroy_process_group()
