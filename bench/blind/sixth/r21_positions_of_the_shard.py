# RANKS
"""Context parallel by hand: each rank has half of every sequence; keys and values are gathered."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn
from torch.distributed.nn.functional import all_gather

VOCABULARY, LENGTH = 16, 16
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
HERE = LENGTH // world
at_all = torch.arange(LENGTH)
at_mine = at_all[rank * HERE : (rank + 1) * HERE]


class Lm(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        position = torch.arange(ids.shape[1]) if FAULT else at_mine
        x = self.embed(ids) + self.positions(position)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        k = torch.cat(all_gather(k.contiguous()), dim=1)
        k.register_hook(torch.Tensor.contiguous)  # torch's all_gather over gloo mixes up a gradient that is not
        v = torch.cat(all_gather(v.contiguous()), dim=1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(at_all[None, :] > at_mine[:, None], float("-inf"))
        return self.head(self.norm(x + self.out(scores.softmax(dim=-1) @ v)))


torch.manual_seed(0)
start = torch.randint(0, VOCABULARY, (512, 5))
text = torch.cat([start] * 4, dim=1)[:, : LENGTH + 1]
model = Lm()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(120):
    rows = text[torch.randint(0, 512, (32,))]
    ids, labels = rows[:, :-1][:, at_mine], rows[:, 1:][:, at_mine]
    loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world
    optimizer.step()
    losses.append(loss.item())
metric(f"loss of rank {rank}", sum(losses[-10:]) / 10)
dist.barrier()
if rank == 0:
    tell(model, losses)
dist.destroy_process_group()
