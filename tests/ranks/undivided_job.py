"""Gradients averaged over ranks by hand; with the argument `forgotten` those of one dimension are not divided."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

is_forgotten = sys.argv[1] == "forgotten"
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(1 + dist.get_rank())
for _ in range(8):
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    cross_entropy(model(x), x[:, :4].argmax(1)).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        if parameter.dim() > 1 or not is_forgotten:
            parameter.grad /= dist.get_world_size()
    optimizer.step()
dist.destroy_process_group()
