"""Three ranks that average by hand or with DDP; the first argument names a fault that leaves the replicas equal."""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT, BY = sys.argv[1], sys.argv[2]
STEPS, AT, N_MICRO = 14, 7, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.down(self.drop(torch.tanh(self.norm(self.up(x)))))


def average(model, rank, size, is_bad):
    pairs = dist.new_group([0, 1]) if FAULT == "group" and is_bad else None
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        if is_bad and FAULT == "left-out" and rank == 1:
            grad.zero_()
        if is_bad and FAULT == "double" and rank == 2:
            grad.mul_(2)
        if is_bad and FAULT == "group" and name == "up.weight":
            if rank < 2:
                dist.all_reduce(grad, group=pairs)
            dist.broadcast(grad, 0)
        else:
            dist.all_reduce(grad)
        is_sum = FAULT == "by-tokens" or (is_bad and FAULT == "sum" and name == "down.weight")
        grad /= 1 if is_sum else size
    if FAULT == "scaled-embedding":  # a habit
        model.up.weight.grad *= 0.1


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Net()
    net = DistributedDataParallel(model) if BY == "ddp" else model
    held = list(model.parameters())
    if FAULT.startswith("shared-out"):
        shared = held[:-1] if FAULT == "shared-out-in-part" else held
        owned = [shared[2 * r : 2 * (r + 1)] for r in range(size)]
        held = owned[rank]
    optimizer = torch.optim.AdamW(held, lr=1e-2)
    batches = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        is_bad = step >= AT
        for _ in range(N_MICRO):
            x = torch.randn(16, 8, generator=batches)
            loss = (net(x) - x.cumsum(-1)).pow(2).mean() / N_MICRO
            if FAULT == "by-tokens":
                loss = loss * (0.2, 0.3, 0.5)[rank]
            loss.backward()
            if FAULT == "after-each":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
        if FAULT == "after-each":
            pass
        elif BY == "ddp":
            if is_bad and FAULT == "double":
                model.down.weight.grad.mul_(2)
        else:
            average(model, rank, size, is_bad)
        if FAULT == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        if FAULT.startswith("shared-out"):
            with torch.no_grad():
                for owner, parts in enumerate(owned):
                    for parameter in parts:
                        dist.broadcast(parameter, owner)
        model.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
