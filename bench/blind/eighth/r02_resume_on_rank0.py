# RANKS
"""DDP that is stopped and resumed: the weights and the optimizer's state come back from a checkpoint of rank 0."""

import os

import torch
import torch.distributed as dist
from kit import FAULT, OUT, metric, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(802)
x = torch.randn(640, 20)
y = (torch.tanh(x @ torch.randn(20, 6)) @ torch.randn(6, 5)).argmax(dim=1)
PATH = os.path.join(OUT, "checkpoint.pt")


def build():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(20, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 5))
    return net, torch.optim.AdamW(net.parameters(), lr=4e-3, weight_decay=0.02)


def save(net, optimizer, step):
    if rank == 0:
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, PATH)
    dist.barrier()


def resume(net, optimizer):
    """Read the checkpoint; DDP's constructor sends rank 0's weights to the others."""
    if FAULT:
        readers = rank == 0
    else:
        readers = True
    step = torch.zeros(1, dtype=torch.long)
    if readers:
        saved = torch.load(PATH, map_location="cpu", weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step += saved["step"]
    dist.broadcast(step, 0)
    return int(step)


def train(model, optimizer, start, stop, losses):
    for step in range(start, stop):
        draw = torch.Generator().manual_seed(1000 + step)
        rows = torch.randperm(512, generator=draw)[:32][rank::world]
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())


losses = []
net, optimizer = build()
train(DDP(net), optimizer, 0, 15, losses)
save(net, optimizer, 15)

net, optimizer = build()  # as after a restart of the job
start = resume(net, optimizer)
model = DDP(net)
train(model, optimizer, start, 40, losses)

with torch.no_grad():
    loss = nn.functional.cross_entropy(net(x[512:]), y[512:])
print(f"RANK {rank} first weight {net[0].weight.detach().sum():.6f}")
if rank == 0:
    metric("heldout", loss)
    tell(net, losses)
dist.destroy_process_group()
