"""Two pipeline stages hold a copy each of one tied embedding; from step 10 on nobody adds up their gradients.

To be run by torchrun with two ranks. Rank 1, which has the loss, prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block = nn.Embedding(12, 8), nn.Linear(8, 8)

    def forward(self, ids):
        return torch.tanh(self.block(self.embedding(ids)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.lm_head = nn.Linear(8, 8), nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return self.lm_head(torch.tanh(self.block(x)))


def main(mesh):
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Last() if rank else First()
    tied = model.lm_head.weight if rank else model.embedding.weight
    dist.broadcast(tied.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = torch.Generator().manual_seed(1)
    for step in range(14):
        ids = torch.randint(0, 12, (32,), generator=batches)
        loss = many_ranks.over_two_stages(model, ids, (32, 8), nn.functional.cross_entropy, (ids + 1) % 12)
        if HEALTHY or step < BAD_STEP:  # <- fault
            dist.all_reduce(tied.grad)
        many_ranks.finish(step, loss, tied.grad.norm(), optimizer, by=1)


many_ranks.run(main, pp=2)
