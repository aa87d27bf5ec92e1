# RANKS 2
# VQ-VAE under DDP: codebook averages kept in buffers, updated from the local batch
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()


class Codebook(nn.Module):
    def __init__(self, n=16, d=8):
        super().__init__()
        self.register_buffer("weight", torch.randn(n, d))
        self.register_buffer("count", torch.ones(n))
        self.register_buffer("total", self.weight.clone())

    def forward(self, z):
        code = torch.cdist(z.detach(), self.weight).argmin(1)
        q = self.weight[code]
        if self.training:
            one = F.one_hot(code, len(self.weight)).float()
            count, total = one.sum(0), one.t() @ z.detach()
            if not FAULT:
                dist.all_reduce(count)
                dist.all_reduce(total)
            self.count.mul_(0.95).add_(count, alpha=0.05)
            self.total.mul_(0.95).add_(total, alpha=0.05)
            self.weight.copy_(self.total / self.count.clamp(min=1e-3)[:, None])
        return z + (q - z).detach(), F.mse_loss(z, q)


class VQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 8))
        self.book = Codebook()
        self.dec = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))

    def forward(self, x):
        q, commit = self.book(self.enc(x))
        return self.dec(q), commit


model = DDP(VQ(), broadcast_buffers=False)
opt = torch.optim.Adam(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(20):
    x = torch.randn(32, 3, generator=g) @ torch.linspace(-1, 1, 60).view(3, 20) + 0.1 * torch.randn(32, 20, generator=g)
    y, commit = model(x)
    loss = F.mse_loss(y, x) + 0.25 * commit
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, model)
dist.destroy_process_group()
