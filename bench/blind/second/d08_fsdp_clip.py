# RANKS 2
# FSDP2: home-made clipping takes the norm of the local shards only
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
mesh = init_device_mesh("cpu", (2,))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n = nn.LayerNorm(d)
        self.f = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.f(self.n(x))


model = nn.Sequential(nn.Linear(16, 32), Block(32), Block(32), nn.Linear(32, 4))
for m in model:
    fully_shard(m, mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
g = torch.Generator().manual_seed(10 + rank)


def clip(params, limit):
    total = torch.stack([p.grad.to_local().pow(2).sum() for p in params]).sum()
    if not FAULT:
        dist.all_reduce(total)
    scale = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in params:
        p.grad.to_local().mul_(scale)


for step in range(20):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    clip(list(model.parameters()), 0.3)
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
