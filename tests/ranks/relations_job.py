"""A few steps of a model on some ranks: how it is spread, and whether it is `right`, as the arguments say.

`ddp`, and `synced` with a collective in forward: a net whose fault is a mean over the batch. `fsdp`, `fsdp1`, `tp`, and
`cp` with keys and values of all ranks: a small text model whose fault is that attention sees what comes. `clip`: two
towers whose features are compared with those of all ranks; their fault is that each rank takes its own for the first.
`looped`: the same, compared in the loop itself, gathered by a function of torch.
`refuses`: `fsdp` with a model that raises on one rank wherever it is not the loop that calls it.

Prints the losses of all ranks, which must be the same however it is watched.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.nn.functional import all_gather
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WORDS, WIDTH, LENGTH = 24, 16, 12
CALLED_BY_LOOP: list[int] = []


class Net(nn.Module):
    def __init__(self, kind: str, *, is_right: bool) -> None:
        super().__init__()
        self.up, self.down, self.kind, self.is_right = nn.Linear(6, 8), nn.Linear(8, 3), kind, is_right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.up(x).relu()
        if self.kind == "synced":
            scale = h.detach().abs().amax() if self.is_right else h.detach().mean(0)
            dist.all_reduce(scale)
            h = h * 0.5 if self.is_right else h - scale / dist.get_world_size()
        elif not self.is_right:
            h = h - h.mean(0)
        return self.down(h)


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return nn.functional.normalize(self.one(x), dim=1), nn.functional.normalize(self.other(y), dim=1)


class Compared(nn.Module):
    """What is in one row belongs together, among those of all ranks."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        labels = self.first * len(x) + torch.arange(len(x))
        return nn.functional.cross_entropy(5 * x @ Gathered.apply(y, 0).T, labels)


class Gathered(torch.autograd.Function):
    """The parts of all ranks; each gets the gradient of its own from all."""

    @staticmethod
    def forward(ctx, part, dim):
        ctx.dim = dim
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None


class Texts(nn.Module):
    def __init__(self, kind: str, *, is_right: bool) -> None:
        super().__init__()
        self.kind, self.is_right = kind, is_right
        self.embed, self.up = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.down, self.head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.kind == "refuses" and dist.get_rank() == 1 and not CALLED_BY_LOOP:
            raise ValueError("no such call is made in training")
        h = self.embed(tokens)
        q, k, v = self.q(h), self.k(h), self.v(h)
        first = 0
        if self.kind == "cp":
            first = dist.get_rank() * tokens.shape[1]
            k, v = Gathered.apply(k, 1), Gathered.apply(v, 1)
        places = torch.arange(k.shape[1])
        hidden = places[None, :] > first + torch.arange(tokens.shape[1])[:, None]
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        if self.is_right:
            scores = scores.masked_fill(hidden, float("-inf"))
        h = h + scores.softmax(-1) @ v
        return self.head(h + self.down(self.up(h).relu()))


def wrapped(kind: str, *, is_right: bool) -> nn.Module:
    n = dist.get_world_size()
    if kind in ("ddp", "synced"):
        return DistributedDataParallel(Net(kind, is_right=is_right))
    if kind in ("clip", "looped"):
        return DistributedDataParallel(Towers())
    net = Texts(kind, is_right=is_right)
    if kind == "fsdp1":
        return FullyShardedDataParallel(net, device_id=torch.device("cpu"))
    if kind in ("fsdp", "refuses"):
        fully_shard(net.up)
        return fully_shard(net, mesh=init_device_mesh("cpu", (n,)))
    if kind == "tp":
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        return parallelize_module(net, init_device_mesh("cpu", (n,), mesh_dim_names=("tp",)), plan)
    return net


def main(kind: str, *, is_right: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = wrapped(kind, is_right=is_right)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compared = Compared(rank if is_right else 0)
    generator = torch.Generator().manual_seed(0 if kind in ("tp", "cp") else rank)
    for step in range(24):  # the ranks find together in the background, some steps after the first
        if kind in ("clip", "looped"):
            x = torch.randn(8, 6, generator=generator)
            y = x.flip(1)
        elif kind in ("ddp", "synced"):
            x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        else:
            texts = torch.randint(0, WORDS, (6, LENGTH + 1), generator=generator)
            x, y = texts[:, :-1], texts[:, 1:]
        if kind == "cp":
            x, y = (each.chunk(n, 1)[rank] for each in (x, y))
        CALLED_BY_LOOP.append(step)
        given = model(x, y) if kind in ("clip", "looped") else model(x)
        CALLED_BY_LOOP.clear()
        if kind == "clip":
            loss = compared(*given)
        elif kind == "looped":
            labels = torch.arange(8) + (8 * rank if is_right else 0)
            loss = nn.functional.cross_entropy(5 * given[0] @ torch.cat(all_gather(given[1])).T, labels)
        else:
            loss = nn.functional.cross_entropy(given.flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        if kind == "cp":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= n
        optimizer.step()
        print(f"{rank} {step} {loss.item()!r}\n", end="", flush=True)
    del model, optimizer
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], is_right=sys.argv[2] == "right")
