# RANKS 2
# data-parallel average by hand over the tensor-parallel group, which holds this rank alone
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
group = mesh.get_group("tp" if FAULT else "dp")
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(20):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad, group=group)
        p.grad /= dist.get_world_size(group)
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
