"""Trains a tiny model for two steps on several ranks in one of many parallel layouts.

places_job.py MODE [--blow]
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, CPU = 8, torch.device("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 16)
        self.down = nn.Linear(16, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, layers=range(4)):
        super().__init__()
        self.layers = nn.ModuleDict({str(i): Block() for i in layers})

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


def plan(net):
    return {
        f"layers.{i}.{name}": style
        for i in net.layers
        for name, style in (("up", ColwiseParallel()), ("down", RowwiseParallel()))
    }


def sharded(net, **options):
    for block in net.layers.values():
        fully_shard(block, **options)
    return fully_shard(net, **options)


def built(mode, world):
    net = Net()
    if mode == "ddp":
        return DistributedDataParallel(net)
    if mode == "fsdp2":
        return sharded(net)
    if mode == "hsdp-named":
        return sharded(net, mesh=init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp_replicate", "dp_shard")))
    if mode in ("fsdp1", "fsdp1-flat"):
        wrapped = {
            key: FullyShardedDataParallel(block, device_id=CPU, use_orig_params=mode == "fsdp1")
            for key, block in net.layers.items()
        }
        net.layers.update(wrapped)
        return FullyShardedDataParallel(
            net, device_id=CPU, use_orig_params=mode == "fsdp1", sharding_strategy=ShardingStrategy.FULL_SHARD
        )
    if mode == "tp-unnamed":
        return parallelize_module(net, init_device_mesh("cpu", (world,)), plan(net))
    if mode == "mesh":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], plan(net))
        return sharded(net, mesh=mesh["dp"])
    if mode == "ddp-in-mesh":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("pipeline", "data_parallel"))
        return DistributedDataParallel(net, process_group=mesh.get_group("data_parallel"))
    assert mode == "none"
    return net


def train(mode):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    if mode.startswith("pp"):
        train_pipeline(mode, rank, world)
        return
    net = built(mode, world)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    replica = {"tp-unnamed": 0, "mesh": rank // 2}.get(mode, rank)  # tensor-parallel ranks share their batches
    for step in range(2):
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + replica))
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def train_pipeline(mode, rank, world):
    n_stages = world * (2 if mode == "pp-interleaved" else 1)
    mine = range(rank, n_stages, world)
    group = init_device_mesh("cpu", (world,), mesh_dim_names=("pp",)).get_group() if mode == "pp-mesh" else None
    nets = [Net(range(s * 4 // n_stages, (s + 1) * 4 // n_stages)) for s in mine]
    stages = [
        PipelineStage(net, s, n_stages, torch.device("cpu"), group=group) for s, net in zip(mine, nets, strict=True)
    ]

    def loss(out, target):
        return (out - target).square().mean()

    if mode == "pp-interleaved":
        schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=loss)
    else:
        schedule = ScheduleGPipe(stages[0], 2, loss_fn=loss)
    optimizer = torch.optim.AdamW([p for net in nets for p in net.parameters()], lr=1e-2)
    for step in range(2):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        inputs = (x,) if rank == 0 else ()
        targets = {"target": torch.zeros(8, WIDTH)} if rank == (n_stages - 1) % world else {}
        schedule.step(*inputs, **targets)
        optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(parser.parse_args().mode)


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
