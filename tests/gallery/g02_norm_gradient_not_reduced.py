"""Sequence parallel: each rank's LayerNorm sees half of the sequence, and from step 10 on nobody adds its gradients up.

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


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)  # halves of 16 hidden units
        for dim, shard in ((0, self.up.weight), (0, self.up.bias), (1, self.down.weight)):
            shard.tensor_model_parallel, shard.partition_dim = True, dim

    def forward(self, x):
        return x + Scatter.apply(self.down(torch.relu(self.up(Gather.apply(self.norm(x))))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(dist.get_rank())
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1)  # all tensor-parallel ranks see the same sequences
    for step in range(14):
        x = torch.randn(32, 8, generator=batches).chunk(2)[dist.get_rank()]
        loss = (model(x) - x.roll(1, -1)).pow(2).sum() / 256
        loss.backward()
        if HEALTHY or step < BAD_STEP:  # <- fault
            for parameter in model.norm.parameters():
                dist.all_reduce(parameter.grad)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {model.norm.weight.grad.norm().item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
