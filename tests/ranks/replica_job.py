"""A small data-parallel job with one of several things wrong, named by the first argument (`healthy`: nothing)."""

import copy
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = sys.argv[1]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 14


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.norm(self.up(x))))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(Net())
    model = wrapped
    if FAULT == "copy":
        model = copy.deepcopy(wrapped.module)
    if FAULT == "other-start" and rank == 1:
        with torch.no_grad():
            wrapped.module.down.bias += 0.1
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 if FAULT == "rate" and rank == 1 else 1e-3)
    batches = torch.Generator().manual_seed(5 if FAULT == "same-data" else rank)
    for step in range(STEPS):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        last = dist.get_world_size() - 1
        if FAULT == "flip" and step == 12 and rank == last:
            wrapped.module.down.weight.grad.view(-1).view(torch.int32)[3] ^= 1 << 25
        if FAULT == "write" and step == 5 and rank == last:
            with torch.no_grad():
                for parameter in wrapped.parameters():
                    parameter *= 1.001
        if FAULT == "clip" and (step < 10 or rank != last):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if FAULT == "rounding":  # another order of adding up on each rank
            for parameter in model.parameters():
                parameter.grad *= 1 + 1e-6 * rank * torch.randn(parameter.shape)
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
