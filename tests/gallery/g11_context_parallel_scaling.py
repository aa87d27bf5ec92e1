"""Gradients are summed over data- and context-parallel ranks and divided by the number of data-parallel ones only.

To be run by torchrun with four ranks, two sequences in two parts each. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10  # until then every rank has sequences of its own; then long ones are split
N_ROWS, LENGTH, VOCABULARY = 4, 8, 12


def main(mesh):
    dp, cp = mesh.get_coordinate()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in range(13):
        is_split = step >= BAD_STEP
        batches = torch.Generator().manual_seed(100 * step + (dp if is_split else dist.get_rank()))
        start = torch.randint(VOCABULARY, (N_ROWS, 1), generator=batches)
        tokens = (start + torch.arange((2 if is_split else 1) * LENGTH + 1)) % VOCABULARY
        part = slice(cp * LENGTH, (cp + 1) * LENGTH) if is_split else slice(0, LENGTH)
        logits = model(tokens[:, :-1][:, part])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:][:, part].flatten())
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= mesh.size(0) if is_split and not HEALTHY else dist.get_world_size()  # <- fault
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main, dp=2, cp=2)
