# RANKS
"""FSDP2 with a preemption: training state is written per rank, and read again by a fresh model and optimizer."""

import os

import torch
import torch.distributed as dist
from kit import FAULT, OUT, metric, tell
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,))
g = torch.Generator().manual_seed(103)
x = torch.randn(1600, 20, generator=g)
y = torch.tanh(x @ torch.randn(20, 6, generator=g)).cumsum(dim=1)


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))


def local(value):
    return value.to_local().clone() if isinstance(value, DTensor) else value


def save(model, optimizer):
    state = {
        "model": {k: v.full_tensor() for k, v in model.state_dict().items()},
        "optimizer": [{k: local(v) for k, v in optimizer.state[p].items()} for p in model.parameters()],
    }
    torch.save(state, os.path.join(OUT, f"state_{rank}.pt"))
    dist.barrier()


def load(model, optimizer):
    reader = 0 if FAULT else rank
    state = torch.load(os.path.join(OUT, f"state_{reader}.pt"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            whole = state["model"][name]
            p.to_local().copy_(whole.chunk(2)[rank])
        for p, entry in zip(model.parameters(), state["optimizer"]):
            for key, value in entry.items():
                if torch.is_tensor(value) and value.dim() > 0:
                    value = DTensor.from_local(value, mesh, p.placements, shape=p.shape, stride=p.stride())
                optimizer.state[p][key] = value


def train(model, optimizer, first, last):
    for step in range(first, last):
        start = (step * 32 + rank * 16) % 1536
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x[start : start + 16]), y[start : start + 16])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())


losses = []
model, optimizer = build()
train(model, optimizer, 0, 24)
save(model, optimizer)
model, optimizer = build()
load(model, optimizer)
train(model, optimizer, 24, 56)
with torch.no_grad():
    loss = nn.functional.mse_loss(model(x[1536:]), y[1536:])
full = {k: v.full_tensor() for k, v in model.state_dict().items()}
if rank == 0:
    metric("heldout_mse", loss)
    copy = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))
    copy.load_state_dict(full)
    tell(copy, losses)
dist.destroy_process_group()
