"""From step 10 on training calls the model inside the DDP wrapper instead of the wrapper: gradients are not averaged.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def main():
    wrapped = DistributedDataParallel(many_ranks.perceptron())
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for step, x in many_ranks.batches(14):
        model = wrapped if HEALTHY or step < BAD_STEP else wrapped.module  # <- fault
        loss = many_ranks.error(model, x)
        loss.backward()
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(wrapped), optimizer)


many_ranks.run(main)
