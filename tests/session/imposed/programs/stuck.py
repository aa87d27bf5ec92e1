"""Two ranks that train apart, until one of them waits in a collective that the other never comes to.

torchrun --nproc-per-node 2 stuck.py KIND; KIND `pending`: the other one has work under way that is never done, too
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    if step == 2 and dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))
    if step == 2 and sys.argv[1] == "pending":
        under_way = dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2), async_op=True)
    Path(f"rank-{dist.get_rank()}").write_text(f"{step} {time.time()}")
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
