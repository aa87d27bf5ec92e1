# RANKS 2
# both ranks shuffle with the same seed and nobody splits the data
import torch, torch.nn as nn, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
x = torch.randn(640, 16)
y = (x[:, 0] * x[:, 1] > 0).long()
ds = TensorDataset(x, y)
loader = (
    DataLoader(ds, 16, shuffle=True)
    if FAULT
    else DataLoader(ds, 16, sampler=DistributedSampler(ds, shuffle=True, seed=1))
)
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2)))
opt = torch.optim.Adam(model.parameters(), 2e-3)
step = 0
for epoch in range(1 if FAULT else 2):
    if not FAULT:
        loader.sampler.set_epoch(epoch)
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if rank == 0:
            print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
