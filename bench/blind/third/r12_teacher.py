# RANKS 2
"""Mean teacher under DDP; only rank 0 updates the teacher, but all ranks learn from theirs."""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, finish

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
teacher = copy.deepcopy(net).requires_grad_(False)
model = DDP(net)
opt = torch.optim.AdamW(model.parameters(), 3e-3)
W = torch.randn(10, 4)
torch.manual_seed(80 + rank)
losses = []
for step in range(40):
    x = torch.randn(16, 10)
    noisy = x + 0.1 * torch.randn_like(x)
    logits = model(noisy)
    with torch.no_grad():
        soft = teacher(x).softmax(-1)
    loss = F.cross_entropy(logits[:4], (x[:4] @ W).argmax(1)) + F.mse_loss(logits.softmax(-1), soft)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0 or not FAULT:  # FAULT: the teachers part
        with torch.no_grad():
            for t, p in zip(teacher.parameters(), net.parameters()):
                t.lerp_(p, 0.05)
    losses.append(loss.item())
finish(losses, model, teacher)
dist.destroy_process_group()
