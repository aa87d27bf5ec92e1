"""FSDP2: from step 10 on each rank clips by the norm of its own shards, so the ranks scale one gradient differently.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def clip(model, step, limit=0.05):
    shards = [p.grad.to_local() for p in model.parameters()]
    total = torch.stack([shard.pow(2).sum() for shard in shards]).sum()
    if HEALTHY or step < BAD_STEP:  # <- fault
        dist.all_reduce(total)
    norm = total.sqrt().item()
    for shard in shards:
        shard *= min(1.0, limit / norm)
    return norm


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        norm = clip(model, step)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {norm:.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
