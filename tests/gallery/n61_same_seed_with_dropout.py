"""Every data-parallel rank has the same seed, so all drop the same units of different batches: a choice, not a fault.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import many_ranks
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Tanh(), nn.Linear(16, 8))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, x in many_ranks.batches(14):
        loss = many_ranks.error(model, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main)
