"""Two processes with DistributedDataParallel; gradients are synchronised at every second micro-batch only.

To be run by torchrun with two ranks.
"""

import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))  # plant: forward
        return self.fc2(x)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(100 + rank)
    for step in range(6):  # turn
        for micro in range(2):
            x = torch.randn(8, 8, generator=generator)  # plant: data
            context = model.no_sync() if micro == 0 else contextlib.nullcontext()
            with context:
                out = model(x)  # plant: output
                loss = (out - x.sum(1, keepdim=True)).pow(2).mean() / 2  # plant: loss
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print("step", step, "loss", total.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
