# RANKS 2
"""DDP with accumulation; the test for the last micro-batch is off by one, so no_sync covers it too."""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, finish

ACCUM = 4
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
W = torch.randn(10, 4)
torch.manual_seed(100 + rank)
losses = []
for step in range(30):
    opt.zero_grad()
    for micro in range(ACCUM):
        last = micro == ACCUM if FAULT else micro == ACCUM - 1  # FAULT: never true
        with contextlib.nullcontext() if last else model.no_sync():
            x = torch.randn(8, 10)
            loss = F.cross_entropy(model(x), (x @ W).argmax(1)) / ACCUM
            loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
