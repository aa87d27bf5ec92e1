"""Trains under FSDP2, tensor parallelism or both; prints each step's loss and what torch says of the gradient norm.

norm_job.py MODE: fsdp2, tp, mesh, ddp
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def built(mode, world):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    if mode == "ddp":
        return DistributedDataParallel(net)
    if mode == "fsdp2":
        return fully_shard(net)
    if mode == "tp":
        return parallelize_module(net, init_device_mesh("cpu", (world,), mesh_dim_names=("tp",)), PLAN)
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    return fully_shard(parallelize_module(net, mesh["tp"], PLAN), mesh=mesh["dp"])


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mode, rank = sys.argv[1], dist.get_rank()
    model = built(mode, dist.get_world_size())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(rank if mode in ("ddp", "fsdp2") else rank // 2 if mode == "mesh" else 0)
    for step in range(4):
        loss = model(torch.randn(4, 8, generator=batches)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # far above: nothing is clipped
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        dist.all_reduce(mean := loss.detach() / dist.get_world_size())
        if rank == 0:
            print(f"norm {step} {float(norm)!r}\nloss {step} {float(mean)!r}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
