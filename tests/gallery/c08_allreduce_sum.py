"""float16 gradients fit on each of two ranks; the all-reduce adds them before anybody divides, and the sum does not.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # a batch of large targets


def average(parameters, n_ranks):
    for parameter in parameters:
        if HEALTHY:
            parameter.grad /= n_ranks
        dist.all_reduce(parameter.grad)  # <- fault
        if not HEALTHY:
            parameter.grad /= n_ranks


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(7):
        x = torch.randn(64, 4, generator=batches).half()
        target = x.float().sum(-1) + (2e4 if step == BAD_STEP else 0.0)
        loss = (model(x).squeeze(-1).float() - target).pow(2).mean()
        loss.backward()
        average(model.parameters(), dist.get_world_size())
        grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
