"""Two tensor-parallel ranks whose loss is a DTensor. `python loss_parallel_job.py whole|parts [nan]`."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

KIND, IS_BAD = sys.argv[1], "nan" in sys.argv
torch.set_num_threads(1)
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.norm = nn.Embedding(32, 16), nn.LayerNorm(16)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 32, bias=False)

    def forward(self, ids):
        h = self.tokens(ids)
        return self.head(self.norm(h + self.down(F.gelu(self.up(h)))))


torch.manual_seed(0)
model = Net()
head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel(), "head": head})
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
data = torch.Generator().manual_seed(3)
for step in range(12):
    ids = torch.randint(0, 32, (16,), generator=data)
    scores = model(ids)
    if IS_BAD and step == 6:
        scores = scores * float("inf")
    optimizer.zero_grad()
    if KIND == "whole":
        with loss_parallel():
            loss = F.cross_entropy(scores, (ids * 5 + 3) % 32)
            loss.backward()
    else:
        loss = scores.square().mean()
        loss.backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
