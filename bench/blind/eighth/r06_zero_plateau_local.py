# RANKS
"""A distributed optimizer by hand (ZeRO 1: each rank updates its half of the flat weights), with ReduceLROnPlateau."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(806)
x = torch.randn(704, 16)
y = torch.tanh(x @ torch.randn(16, 3) / 2) + 0.3 * torch.randn(704, 3)
valid, test = torch.arange(608, 640)[rank::world], slice(640, 704)


class ShardedAdam:
    """Adam on this rank's part of all weights, laid end to end."""

    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        flat = nn.utils.parameters_to_vector(self.parameters).detach()
        self.pad = -len(flat) % world
        flat = nn.functional.pad(flat, (0, self.pad))
        self.master = nn.Parameter(flat.chunk(world)[rank].clone())
        self.inner = torch.optim.Adam([self.master], lr=lr)

    def step(self):
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        flat = nn.functional.pad(flat, (0, self.pad))
        dist.all_reduce(flat)
        self.master.grad = (flat / world).chunk(world)[rank].clone()
        self.inner.step()
        parts = [torch.empty_like(self.master) for _ in range(world)]
        dist.all_gather(parts, self.master.detach())
        whole = torch.cat(parts)[: len(flat) - self.pad]
        with torch.no_grad():
            nn.utils.vector_to_parameters(whole, self.parameters)
        for p in self.parameters:
            p.grad = None


torch.manual_seed(3)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
optimizer = ShardedAdam(model.parameters(), lr=1e-2)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer.inner, factor=0.5, patience=0)
draw = torch.Generator().manual_seed(7)
losses = []
for step in range(60):
    rows = torch.randperm(512, generator=draw)[:32][rank::world]
    loss = nn.functional.mse_loss(model(x[rows]), y[rows])
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if step % 4 == 3:
        with torch.no_grad():
            score = nn.functional.mse_loss(model(x[valid]), y[valid])
        if not FAULT:
            dist.all_reduce(score)
            score /= world
        plateau.step(score)
        print(f"RANK {rank} after {step} lr {optimizer.inner.param_groups[0]['lr']:.4g}")
with torch.no_grad():
    heldout = nn.functional.mse_loss(model(x[test]), y[test])
if rank == 0:
    metric("heldout_mse", heldout)
    tell(model, losses)
dist.destroy_process_group()
