"""Rank 0 alone evaluates now and then, with dropout draws of its own in between; training is in step all the same.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import many_ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for step, x in many_ranks.batches(24):
        loss = many_ranks.error(wrapped, x)
        loss.backward()
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)
        if step % 5 == 0 and dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                model(torch.randn(64, 8))
            model.train()


many_ranks.run(main)
