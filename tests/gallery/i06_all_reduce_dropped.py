"""A communication library gives rank 1 its own gradients back instead of the sum. Nothing fails, nothing is strange.

The library is played by a wrapper below torch.distributed. To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn

HEALTHY = "--healthy" in sys.argv


def play_a_faulty_library():
    reduce = dist.ProcessGroup.allreduce

    def allreduce(self, tensors, *options):
        own = tensors[0].clone()
        work = reduce(self, tensors, *options)
        work.wait()
        if dist.get_rank() == 1 and not HEALTHY:
            tensors[0].copy_(own)  # <- fault
        return work

    dist.ProcessGroup.allreduce = allreduce


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    play_a_faulty_library()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(6):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
