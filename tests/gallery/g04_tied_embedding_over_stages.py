"""Two pipeline stages hold a copy each of one tied embedding; from step 10 on nobody adds up their gradients.

To be run by torchrun with two ranks. Rank 1, which has the loss, prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 10


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.block = nn.Embedding(12, 8), nn.Linear(8, 8)

    def forward(self, ids):
        return torch.tanh(self.block(self.embedding(ids)))


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.lm_head = nn.Linear(8, 8), nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return self.lm_head(torch.tanh(self.block(x)))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = Last() if rank else First()
    tied = model.lm_head.weight if rank else model.embedding.weight
    dist.broadcast(tied.data, src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = torch.Generator().manual_seed(1)
    for step in range(14):
        ids = torch.randint(0, 12, (32,), generator=batches)
        if rank == 0:
            hidden = model(ids)
            dist.send(hidden.detach(), dst=1)
            grad = torch.empty_like(hidden)
            dist.recv(grad, src=1)
            hidden.backward(grad)
        else:
            hidden = torch.empty(32, 8)
            dist.recv(hidden, src=0)
            hidden.requires_grad_()
            loss = nn.functional.cross_entropy(model(hidden), (ids + 1) % 12)
            loss.backward()
            dist.send(hidden.grad, dst=0)
        if HEALTHY or step < BAD_STEP:  # <- fault
            dist.all_reduce(tied.grad)
        if rank == 1:
            print(f"step {step} loss {loss.item():.6f} grad {tied.grad.norm().item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
