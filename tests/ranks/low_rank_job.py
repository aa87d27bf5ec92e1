"""DDP that reduces by PowerSGD from step 5 on, as torch documents it: what is used is near the mean, and not it."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4)))
state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=5, min_compression_rate=1.0)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(1 + dist.get_rank())
for _ in range(12):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    optimizer.step()
dist.destroy_process_group()
