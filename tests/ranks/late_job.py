"""Two ranks that own a half of the parameters each, and send what they update; the trunk is trained from step 6 on.

The argument: `kept` where the list of what is broadcast is not made anew then, `sent` where it is.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS, AT = 24, 6


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    trunk, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(trunk, nn.Tanh(), head)
    trunk.requires_grad_(False)
    trained = list(head.parameters())
    sent = list(enumerate(trained))
    optimizer = torch.optim.Adam([p for i, p in sent if i % size == rank], lr=0.01)
    torch.manual_seed(rank)
    for step in range(STEPS):
        if step == AT:
            trunk.requires_grad_(True)
            trained += trunk.parameters()
            owned = [p for i, p in enumerate(trained) if i % size == rank and i >= len(sent)]
            optimizer.add_param_group({"params": owned})
            sent = list(enumerate(trained)) if sys.argv[1] == "sent" else sent
        model(torch.randn(4, 6)).square().mean().backward()
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= size
        optimizer.step()
        for i, p in sent:
            dist.broadcast(p.data, i % size)
        for p in trained:
            p.grad = None
    dist.destroy_process_group()


main()
