"""A few steps on some ranks: `ddp` with a norm over the batch, `synced` with a collective in forward, `fsdp`, `tp`.

Prints the losses of rank 0, which must be the same however it is watched.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.up, self.down, self.kind = nn.Linear(6, 8), nn.Linear(8, 3), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x).relu()
        if self.kind == "ddp":
            h = h - h.mean(0)
        if self.kind == "synced":
            mean = h.detach().mean(0)
            dist.all_reduce(mean)
            h = h - mean / dist.get_world_size()
        return self.down(h)


def wrapped(kind: str) -> nn.Module:
    net, n = Net(kind), dist.get_world_size()
    if kind == "fsdp":
        return fully_shard(net, mesh=init_device_mesh("cpu", (n,)))
    if kind == "tp":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(net, init_device_mesh("cpu", (n,), mesh_dim_names=("tp",)), plan)
    return DistributedDataParallel(net)


def main(kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = wrapped(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(0 if kind == "tp" else rank)
    for step in range(4):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(step, loss.item(), flush=True)
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
