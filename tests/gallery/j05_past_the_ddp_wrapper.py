"""From step 10 on training calls the model inside the DDP wrapper instead of the wrapper: gradients are not averaged.

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


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        model = wrapped if HEALTHY or step < BAD_STEP else wrapped.module  # <- fault
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        grad = torch.nn.utils.get_total_norm([p.grad for p in wrapped.parameters()])
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
