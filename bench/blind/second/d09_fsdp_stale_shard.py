# RANKS 2
# FSDP2: rank 1 loads the shard of rank 0 from a checkpoint, for one weight
import torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
mesh = init_device_mesh("cpu", (2,))
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
for m in model:
    if isinstance(m, nn.Linear):
        fully_shard(m, mesh=mesh)
fully_shard(model, mesh=mesh)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
saved = None
for step in range(20):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
    if step == 7:
        parts = {n: [torch.empty_like(p.to_local()) for _ in range(2)] for n, p in model.named_parameters()}
        for n, p in model.named_parameters():
            dist.all_gather(parts[n], p.to_local().detach().contiguous())
        saved = parts
    if step == 7:  # restart from the checkpoint
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.to_local().copy_(saved[n][0 if FAULT and n == "2.weight" else rank])
final(loss, model)
dist.destroy_process_group()
