# RANKS
"""DDP with gradient accumulation: micro-batches but the last of a group run under no_sync; the epoch's rest is a group too."""

import contextlib

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(102)
x = torch.randn(736, 16)
y = torch.sin(x @ torch.randn(16, 3)) + 0.05 * torch.randn(736, 3)

net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
dataset = torch.utils.data.TensorDataset(x[:608], y[:608])
sampler = torch.utils.data.DistributedSampler(dataset, seed=2)
loader = torch.utils.data.DataLoader(dataset, batch_size=8, sampler=sampler)  # 38 micro-batches
ACCUMULATE = 4
losses = []


def group_size(index, total):
    """How many micro-batches the group of this one holds."""
    start = index - index % ACCUMULATE
    return min(ACCUMULATE, total - start)


for epoch in range(4):
    sampler.set_epoch(epoch)
    total = len(loader)
    for index, (inputs, targets) in enumerate(loader):
        last = index + 1 == total
        full = (index + 1) % ACCUMULATE == 0
        if FAULT:
            sync = full
        else:
            sync = full or last
        with contextlib.nullcontext() if sync else model.no_sync():
            loss = nn.functional.mse_loss(model(inputs), targets) / group_size(index, total)
            loss.backward()
        if full or last:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())

with torch.no_grad():
    metric("heldout_mse", nn.functional.mse_loss(net(x[608:]), y[608:]))
if rank == 0:
    tell(net, losses)
dist.destroy_process_group()
