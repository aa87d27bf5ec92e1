"""Experts that began alike on all ranks are different by design; the router and the rest are averaged by hand.

To be run by torchrun with two ranks. Rank 0 prints.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])  # two of four, made with the seed of all

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        return sum(weights[:, i : i + 1] * torch.tanh(expert(x)) for i, expert in enumerate(self.experts))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = Mixture()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(14):
        x = torch.randn(16, 8, generator=batches)
        loss = (model(x) - x.cumsum(-1)).pow(2).mean()
        loss.backward()
        for parameter in model.router.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
