# RANKS 2
"""Pipeline by hand, two stages, four micro-batches: stage 0 goes back in the order last in, first out."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
M, B, H = 4, 8, 24
stage = (
    nn.Sequential(nn.Linear(10, H), nn.Tanh(), nn.Linear(H, H))
    if rank == 0
    else nn.Sequential(nn.Tanh(), nn.Linear(H, H), nn.ReLU(), nn.Linear(H, 3))
)
opt = torch.optim.Adam(stage.parameters(), 2e-3)
W = torch.randn(10, 3, generator=torch.Generator().manual_seed(3))
data = torch.Generator().manual_seed(4)
losses = []
for step in range(40):
    xs = torch.randn(M, B, 10, generator=data)
    ys = (xs @ W).argmax(-1)
    opt.zero_grad()
    if rank == 0:
        sent = []
        for m in range(M):
            h = stage(xs[m])
            dist.send(h.detach(), 1)
            sent.append(h)
        for m in range(M):
            g = torch.empty(B, H)
            dist.recv(g, 1)
            h = sent.pop() if FAULT else sent.pop(0)  # FAULT: gradient of micro-batch m meets activation M-1-m
            h.backward(g)
        losses.append(0.0)
    else:
        total = 0.0
        grads = []
        for m in range(M):
            h = torch.empty(B, H)
            dist.recv(h, 0)
            h.requires_grad_()
            loss = F.cross_entropy(stage(h), ys[m]) / M
            loss.backward()
            grads.append(h.grad)
            total += loss.item()
        for g in grads:
            dist.send(g, 0)
        losses.append(total)
    opt.step()
finish(losses, stage)
dist.destroy_process_group()
