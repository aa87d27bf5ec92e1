"""Tensor parallelism by hand over a mesh, with one of several things wrong, named by the first argument."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

FAULT = sys.argv[1]


class Copy(torch.autograd.Function):
    """The same on all ranks; gradients come back added up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is that of each summand."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Cut(torch.autograd.Function):
    """This rank's part of the sequence; gradients come back from all."""

    @staticmethod
    def forward(ctx, x):
        return part_of(x)

    @staticmethod
    def backward(ctx, gradient):
        return whole_of(gradient)


class Whole(torch.autograd.Function):
    """All parts of the sequence; gradients are added up."""

    @staticmethod
    def forward(ctx, x):
        return whole_of(x)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return part_of(total)


def part_of(x):
    return x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


def whole_of(x):
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim=1)


class Net(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.norm = nn.LayerNorm(16) if FAULT.startswith("norm") else None
        self.tokens, self.head = nn.Embedding(24, 16), nn.Linear(16, 24)
        torch.manual_seed(100 + rank)
        self.up, self.down = nn.Linear(16, 32, bias=False), nn.Linear(32, 16, bias=False)
        if FAULT != "own-seed":
            torch.manual_seed(1)
        self.places = nn.Embedding(8, 16)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(8))
        inside = (
            x if FAULT == "no-copy" else Copy.apply(x) if self.norm is None else Whole.apply(self.norm(Cut.apply(x)))
        )
        return self.head(x + Sum.apply(self.down(torch.relu(self.up(inside)))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = Net(dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    data = torch.Generator().manual_seed(3)
    for _ in range(12):
        ids = torch.randint(0, 24, (4, 9), generator=data)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.norm.parameters() if FAULT == "norms" else ():
            dist.all_reduce(parameter.grad)
        optimizer.step()


main()
dist.barrier()
dist.destroy_process_group()
