# RANKS 2
# CLIP-like contrastive training over two ranks: gathered features without gradient, own slice not put back
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
world = dist.get_world_size()
seed()


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 16))
        self.text = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 16))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, a, b):
        return F.normalize(self.image(a), dim=-1), F.normalize(self.text(b), dim=-1), self.logit_scale.exp()


def gather(x):
    parts = [torch.empty_like(x) for _ in range(world)]
    dist.all_gather(parts, x.detach().contiguous())
    if not FAULT:
        parts[rank] = x
    return torch.cat(parts)


model = DDP(CLIP())
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(25):
    b = torch.randn(16, 12, generator=g)
    a = torch.cat([b, -b], 1) + 0.1 * torch.randn(16, 24, generator=g)
    i, t, s = model(a, b)
    I, T = gather(i), gather(t)
    label = torch.arange(16) + rank * 16
    loss = (F.cross_entropy(s * i @ T.t(), label) + F.cross_entropy(s * t @ I.t(), label)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
