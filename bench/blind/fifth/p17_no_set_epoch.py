# RANKS
"""DDP with a DistributedSampler over several epochs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(192, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset, shuffle=True, seed=3)
loader = DataLoader(dataset, batch_size=12, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
losses = []
for epoch in range(5):
    if not FAULT:
        sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
if dist.get_rank() == 0:
    tell(model.module, losses)
dist.destroy_process_group()
