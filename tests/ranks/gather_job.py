"""Contrastive training on two ranks: features are gathered in loss code, into memory that holds anything.

Prints the losses of rank 0 and where the weights have come to, which must be the same however it is watched.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


def gathered(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.full_like(x, 1e20) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    parts[dist.get_rank()] = x
    return torch.cat(parts)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(12):
        x = torch.randn(8, 6, generator=generator)
        y = model(x + 0.1 * torch.randn(8, 6, generator=generator))
        z = gathered(y)
        loss = functional.cross_entropy(y @ z.T, torch.arange(8) + 8 * rank)
        shown = loss.detach()
        dist.all_reduce(shown)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(step, shown.item(), sum(p.sum().item() for p in model.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
