"""Sequence parallel: each rank's LayerNorm sees half of the sequence, and from step 10 on nobody adds its gradients up.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import sys

import many_ranks
import torch
import torch.distributed as dist

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


class Gather(torch.autograd.Function):
    """The whole sequence from its halves; backward adds up and gives each rank its half."""

    @staticmethod
    def forward(ctx, x):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


class Scatter(torch.autograd.Function):
    """Adds up and gives each rank its half of the sequence; backward gathers."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        dist.all_reduce(x)
        return x.chunk(dist.get_world_size())[dist.get_rank()].clone()

    @staticmethod
    def backward(ctx, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.cat(parts)


def main(mesh):
    torch.manual_seed(dist.get_rank())
    model = many_ranks.ParallelBlock(Gather, Scatter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, sequences in many_ranks.batches(14, n_rows=32, seed=1):  # the same for all tensor-parallel ranks
        x = sequences.chunk(2)[dist.get_rank()]
        loss = (model(x) - x.roll(1, -1)).pow(2).sum() / 256
        loss.backward()
        if HEALTHY or step < BAD_STEP:  # <- fault
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad)
        many_ranks.finish(step, loss, model.norm.weight.grad.norm(), optimizer)


many_ranks.run(main, tp=2)
