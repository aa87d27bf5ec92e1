"""Two data-parallel ranks with dropout, batch norm, autocast and two micro-batches a step; prints what it came to."""

import gc

import torch
import torch.distributed as dist
from torch import nn


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 2))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(10 + rank)
    for _ in range(12):
        for _ in range(2):
            x, y = torch.randn(12, 6), torch.randint(0, 2, (12,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    bits = sum(int(p.detach().view(torch.int32).long().sum()) for p in model.parameters())
    print(f"rank {rank} bits {bits};", flush=True)


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
