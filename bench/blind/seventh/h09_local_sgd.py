# RANKS
"""Local SGD: the ranks train apart, and every eighth step their weights are averaged; moments stay local."""

import torch
import torch.distributed as dist
from kit import metric, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(204)
x = torch.randn(1400, 16)
y = torch.tanh(x @ torch.randn(16, 4)) + 0.05 * torch.randn(1400, 4)
model = nn.Sequential(nn.Linear(16, 48), nn.SiLU(), nn.LayerNorm(48), nn.Linear(48, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
EVERY = 8
losses = []


def average(model):
    with torch.no_grad():
        flat = nn.utils.parameters_to_vector(model.parameters())
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / world, model.parameters())


for step in range(56):
    start = (step * 48 + rank * 24) % 1296
    loss = nn.functional.mse_loss(model(x[start : start + 24]), y[start : start + 24])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
    if (step + 1) % EVERY == 0:
        average(model)

with torch.no_grad():
    value = nn.functional.mse_loss(model(x[1296:]), y[1296:])
if rank == 0:
    metric("heldout_mse", value)
    tell(model, losses)
dist.destroy_process_group()
