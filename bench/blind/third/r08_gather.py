# RANKS 2
"""CLIP over two ranks: features of all ranks are gathered without a gradient; the keys teach nothing."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, finish

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class CLIP(nn.Module):
    def __init__(self):
        super().__init__()
        self.img, self.txt = nn.Linear(20, 16), nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, i, t):
        return F.normalize(self.img(i), dim=-1), F.normalize(self.txt(t), dim=-1), self.scale.exp()


def gather(x):
    if FAULT:
        out = [torch.zeros_like(x) for _ in range(world)]
        dist.all_gather(out, x)  # FAULT: not differentiable
    else:
        out = torch.distributed.nn.functional.all_gather(x)
    return torch.cat(list(out))


torch.manual_seed(0)
model = DDP(CLIP())
opt = torch.optim.AdamW(model.parameters(), 2e-3)
A, Bm = torch.randn(6, 20), torch.randn(6, 12)
torch.manual_seed(30 + rank)
losses = []
for step in range(40):
    z = torch.randn(12, 6)
    fi, ft, s = model(z @ A, z @ Bm)
    ai, at = gather(fi), gather(ft)
    li, lt = s * fi @ at.T, s * ft @ ai.T
    label = torch.arange(len(fi)) + rank * len(fi)
    loss = (F.cross_entropy(li, label) + F.cross_entropy(lt, label)) / 2
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
dist.destroy_process_group()
