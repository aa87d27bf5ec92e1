# RANKS 2
"""DDP; the sampler's rank comes from an environment variable that torchrun does not set."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from c import FAULT, finish

dist.init_process_group("gloo")
torch.manual_seed(0)
data_rank = int(os.environ.get("SLURM_PROCID", 0)) if FAULT else dist.get_rank()  # FAULT
x = torch.randn(640, 10)
y = (x @ torch.randn(10, 3)).argmax(1)
ds = TensorDataset(x, y)
sampler = DistributedSampler(ds, num_replicas=dist.get_world_size(), rank=data_rank, shuffle=True, seed=0)
loader = DataLoader(ds, batch_size=16, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)))
opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
torch.manual_seed(5 + dist.get_rank())
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for xb, yb in loader:
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
