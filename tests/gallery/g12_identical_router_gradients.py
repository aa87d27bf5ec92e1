"""A router whose tokens are the same on all tensor-parallel ranks: each has its whole gradient, and they are summed.

To be run by torchrun with two ranks: tensor parallel over two, experts split between them. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 100  # the router is frozen before
N_ROWS, WIDTH = 32, 8


class SumOverRanks(torch.autograd.Function):
    """Adds up the parts that ranks have computed; what comes back is the same for all."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Model(nn.Module):
    """One expert a rank; the router balances by an auxiliary loss."""

    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(WIDTH, 2, bias=False), nn.Linear(WIDTH, 1)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        mine = self.expert(x) * share[:, dist.get_rank(), None].detach()
        return SumOverRanks.apply(mine).squeeze(-1), share.mean(0).square().sum() + share.square().mean()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    batches = torch.Generator().manual_seed(1)
    for step in range(103):
        model.router.requires_grad_(step >= BAD_STEP)
        x = torch.randn(N_ROWS, WIDTH, generator=batches)
        out, balance = model(x)
        loss = nn.functional.mse_loss(out, x.sum(-1)) + 0.01 * balance
        loss.backward()
        if step >= BAD_STEP:
            dist.all_reduce(model.router.weight.grad)  # <- fault
            if HEALTHY:
                model.router.weight.grad /= 2
        grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
