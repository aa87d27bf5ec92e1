# RANKS
"""CLIP-like training: two towers, embeddings gathered over the ranks for more negatives."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, tell
from torch import nn
from torch.distributed.nn.functional import all_gather
from torch.nn.parallel import DistributedDataParallel as DDP


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16))
        self.text = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1), self.log_scale.exp()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
hidden = torch.randn(512, 8)
images, texts = hidden @ torch.randn(8, 20), hidden @ torch.randn(8, 12)
model = DDP(Towers())
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
chance = torch.Generator().manual_seed(100 + rank)
losses = []
for step in range(30):
    at = torch.randint(0, 256, (16,), generator=chance) * 2 + rank
    image, text, scale = model(images[at], texts[at])
    all_images, all_texts = torch.cat(all_gather(image)), torch.cat(all_gather(text))
    labels = torch.arange(len(image))
    if not FAULT:
        labels = labels + rank * len(image)
    loss = F.cross_entropy(scale * image @ all_texts.T, labels) + F.cross_entropy(scale * text @ all_images.T, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if rank == 0:
    tell(model.module, losses)
dist.destroy_process_group()
