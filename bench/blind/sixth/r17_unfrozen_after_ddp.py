# RANKS
"""DDP: the head is trained first, with the body frozen; then the body is unfrozen."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
x = torch.randn(512, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
net = nn.Sequential(body, nn.Linear(32, 4))
body.requires_grad_(False)
model = DDP(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(100 + rank)
losses = []
for step in range(80):
    if step == 30:
        body.requires_grad_(True)
        if not FAULT:
            model = DDP(net)
    at = torch.randint(0, 256, (16,)) + 256 * rank
    loss = F.cross_entropy(model(x[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
weight = body[0].weight.detach().clone()
dist.broadcast(weight, 0)
if rank == 1:
    metric("rank 1 away from rank 0", (weight - body[0].weight).abs().max())
dist.barrier()
if rank == 0:
    tell(net, losses)
dist.destroy_process_group()
