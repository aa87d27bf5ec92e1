# RANKS 2
"""DDP; ReduceLROnPlateau looks at each rank's own validation loss, so the learning rates part."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, finish

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)))
opt = torch.optim.Adam(model.parameters(), 1e-2)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
W = torch.randn(10, 1)
torch.manual_seed(70 + rank)
losses = []
for step in range(50):
    x = torch.randn(16, 10)
    loss = F.mse_loss(model(x), torch.tanh(x @ W))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if step % 4 == 3:
        model.eval()
        with torch.no_grad():
            vx = torch.randn(16, 10)
            val = F.mse_loss(model.module(vx), torch.tanh(vx @ W))
        model.train()
        if not FAULT:
            dist.all_reduce(val)  # FAULT: left out
        sched.step(val)
finish(losses, model)
print("lr", opt.param_groups[0]["lr"])
dist.destroy_process_group()
