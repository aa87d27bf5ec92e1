# RANKS 2
# mean teacher under DDP: only rank 0 updates the teacher, all ranks learn from theirs
import copy, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
teacher = copy.deepcopy(net).requires_grad_(False)
model = DDP(net)
opt = torch.optim.AdamW(net.parameters(), 3e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(24):
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    out = model(x + 0.1 * torch.randn(16, 16, generator=g))
    with torch.no_grad():
        t = teacher(x).softmax(-1)
    loss = F.cross_entropy(out, y) + F.mse_loss(out.softmax(-1), t)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0 or not FAULT:
        with torch.no_grad():
            for a, b in zip(teacher.parameters(), net.parameters()):
                a.lerp_(b, 0.05)
    if rank == 0:
        print(step, loss.item())
final(loss, model, teacher)
dist.destroy_process_group()
