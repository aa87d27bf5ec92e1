"""DDP, or FSDP2 with `sharded`: prints a digest of the losses of each rank. Arguments: seed [sharded]."""

import sys

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(int(sys.argv[1]))
net = nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 1))
if "sharded" in sys.argv:
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(dist.get_rank())
for _ in range(4):
    loss = model(torch.randn(3, 4, generator=draw)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {dist.get_rank()} loss {loss.item()!r}\n", end="", flush=True)
dist.barrier()
print("trained\n", end="", flush=True)
dist.destroy_process_group()
