# RANKS 2
# resume: rank 0 alone loads the checkpoint, after the model was wrapped
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
model = DDP(net)
opt = torch.optim.AdamW(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
torch.manual_seed(99)
ck = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).state_dict()
if rank == 0 or not FAULT:
    net.load_state_dict(ck)
for step in range(20):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
