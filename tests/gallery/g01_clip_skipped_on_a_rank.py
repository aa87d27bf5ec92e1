"""Tensor parallel by hand: from step 10 on only rank 0 clips, and the replicated LayerNorm drifts apart.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


class Copy(torch.autograd.Function):
    """The same forward on all ranks; backward adds up what they give."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    """Adds up forward; the same gradient to all."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)  # halves of 16 hidden units
        for dim, shard in ((0, self.up.weight), (0, self.up.bias), (1, self.down.weight)):
            shard.tensor_model_parallel, shard.partition_dim = True, dim

    def forward(self, x):
        return x + Reduce.apply(self.down(torch.relu(self.up(Copy.apply(self.norm(x))))))


def clip(model, step, limit=0.05):
    shared = torch.zeros(())
    sharded = torch.zeros(())
    for parameter in model.parameters():
        part = sharded if hasattr(parameter, "tensor_model_parallel") else shared
        part += parameter.grad.pow(2).sum()
    dist.all_reduce(sharded)
    norm = (shared + sharded).sqrt()
    if HEALTHY or step < BAD_STEP or dist.get_rank() == 0:  # <- fault
        for parameter in model.parameters():
            parameter.grad *= min(1.0, limit / norm.item())
    return norm


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(dist.get_rank())
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1)  # all tensor-parallel ranks see the same data
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.roll(1, -1)).pow(2).mean()
        loss.backward()
        norm = clip(model, step)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {norm.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
