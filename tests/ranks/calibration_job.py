"""Two ranks train a small model: `ddp` with data of their own, `same` with the same data, `fsdp` sharded."""

import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn

how = sys.argv[1]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))
if how == "fsdp":
    from torch.distributed.fsdp import fully_shard

    trained = fully_shard(model)
else:
    trained = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(0 if how == "same" else dist.get_rank())
for _ in range(3):
    trained(torch.randn(4, 8, generator=data)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
values = b"".join(getattr(p, "_local_tensor", p).detach().numpy().tobytes() for p in model.parameters())
sys.stdout.write(f"{dist.get_rank()} {hashlib.sha256(values).hexdigest()}\n")
dist.destroy_process_group()
