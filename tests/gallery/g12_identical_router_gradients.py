"""A router whose tokens are the same on all tensor-parallel ranks: each has its whole gradient, and they are summed.

To be run by torchrun with two ranks: tensor parallel over two, experts split between them. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 100  # the router is frozen before
N_ROWS, WIDTH = 32, 8


class Model(nn.Module):
    """One expert a rank; the router balances by an auxiliary loss."""

    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(WIDTH, 2, bias=False), nn.Linear(WIDTH, 1)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        mine = self.expert(x) * share[:, dist.get_rank(), None].detach()
        return many_ranks.Reduce.apply(mine).squeeze(-1), share.mean(0).square().sum() + share.square().mean()


def main(mesh):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step, x in many_ranks.batches(103, n_rows=N_ROWS, n_columns=WIDTH, seed=1):
        model.router.requires_grad_(step >= BAD_STEP)
        out, balance = model(x)
        loss = nn.functional.mse_loss(out, x.sum(-1)) + 0.01 * balance
        loss.backward()
        if step >= BAD_STEP:
            dist.all_reduce(model.router.weight.grad)  # <- fault
            if HEALTHY:
                model.router.weight.grad /= 2
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)


many_ranks.run(main, tp=2)
