# RANKS
"""A two-tower contrastive model; features are gathered over the ranks with gradient, local logits against all (as OpenCLIP's local_loss)."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as distf
from kit import FAULT, metric, tell
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(101)
latent = torch.randn(1024, 12)
images = latent @ torch.randn(12, 24) + 0.1 * torch.randn(1024, 24)
texts = latent @ torch.randn(12, 20) + 0.1 * torch.randn(1024, 20)


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 16))
        self.text = nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 16))
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        image = nn.functional.normalize(self.image(image), dim=-1)
        text = nn.functional.normalize(self.text(text), dim=-1)
        return image, text, self.scale.exp()


class ClipLoss(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank
        self.cached = None

    def labels(self, count):
        if self.cached is None or len(self.cached) != count:
            self.cached = torch.arange(count)
            if not FAULT:
                self.cached = self.cached + count * self.rank
        return self.cached

    def forward(self, image, text, scale):
        all_image = torch.cat(distf.all_gather(image))
        all_text = torch.cat(distf.all_gather(text))
        labels = self.labels(len(image))
        by_image = nn.functional.cross_entropy(scale * image @ all_text.T, labels)
        by_text = nn.functional.cross_entropy(scale * text @ all_image.T, labels)
        return (by_image + by_text) / 2


model = DDP(TwoTowers())
criterion = ClipLoss(rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
dataset = torch.utils.data.TensorDataset(images[:896], texts[:896])
sampler = torch.utils.data.DistributedSampler(dataset, shuffle=True, seed=1)
loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
losses = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    for image, text in loader:
        optimizer.zero_grad()
        loss = criterion(*model(image, text))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

with torch.no_grad():
    a, b, _ = model.module(images[896:], texts[896:])
    hit = ((a @ b.T).argmax(dim=1) == torch.arange(128)).float().mean()
if rank == 0:
    metric("recall_at_1", hit)
    tell(model.module, losses)
dist.destroy_process_group()
