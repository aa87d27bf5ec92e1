"""Rank 0 alone evaluates now and then, with dropout draws of its own in between; training is in step all the same.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 8))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(24):
        x = torch.randn(16, 8, generator=batches)
        loss = (wrapped(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0 and dist.get_rank() == 0:
            model.eval()
            with torch.no_grad():
                model(torch.randn(64, 8))
            model.train()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
