# RANKS
"""Diffusion under DDP: each rank seeds alike, so the two ranks draw the same noise and the same timesteps."""

import torch
import torch.distributed as dist
from kit import FAULT, tell
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(30)
data = torch.randn(4, 3, 8, 8)[torch.arange(256) % 4] + 0.1 * torch.randn(256, 3, 8, 8)


class Denoiser(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.time = nn.Sequential(nn.Embedding(50, c), nn.Linear(c, c), nn.SiLU())
        self.enter, self.leave = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 3, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for _ in range(2))

    def forward(self, x, t):
        h = self.enter(x) + self.time(t)[:, :, None, None]
        for norm, conv in zip(self.norms, self.middle, strict=True):
            h = h + conv(torch.nn.functional.silu(norm(h)))
        return self.leave(h)


model = nn.parallel.DistributedDataParallel(Denoiser())
kept = torch.cumprod(1 - torch.linspace(1e-3, 0.15, 50), 0)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
sampler = torch.utils.data.DistributedSampler(data, world, rank, seed=1)
loader = torch.utils.data.DataLoader(data, batch_size=16, sampler=sampler)
torch.manual_seed(31 if FAULT else 31 + rank)
losses = []
for epoch in range(5):
    sampler.set_epoch(epoch)
    for x in loader:
        t = torch.randint(0, 50, (len(x),))
        noise = torch.randn_like(x)
        a = kept[t][:, None, None, None]
        loss = nn.functional.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
tell(model.module, losses)
dist.destroy_process_group()
