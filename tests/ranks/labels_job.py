"""Two ranks of DDP with unequal numbers of labels; the argument says by what the loss is divided."""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(6):
    tokens = torch.randint(0, 20, (32,))
    labels = torch.randint(0, 20, (32,))
    labels[: 24 * rank] = -100
    optimizer.zero_grad()
    if sys.argv[1] == "own":
        loss = nn.functional.cross_entropy(model(tokens), labels)
    else:
        n = (labels >= 0).sum()
        dist.all_reduce(n)
        loss = nn.functional.cross_entropy(model(tokens), labels, reduction="sum") * size / n
    loss.backward()
    optimizer.step()
gc.collect()
dist.barrier()
dist.destroy_process_group()
