"""At step 10 one bit of one element of rank 1's gradient flips before the all-reduce: all replicas are equal and wrong.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


def flipped(gradient):
    gradient = gradient.clone()
    gradient.view(-1).view(torch.int32)[5] ^= 1 << 30  # <- fault
    return gradient


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        is_here = step == BAD_STEP and dist.get_rank() == 1 and not HEALTHY
        device = model.module[2].weight.register_hook(flipped) if is_here else None
        loss.backward()
        if device is not None:
            device.remove()
        grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
