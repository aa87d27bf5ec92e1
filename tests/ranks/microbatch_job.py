"""Two ranks under DDP: gradients accumulate inside `no_sync`, an expert gets no tokens, dropout is checkpointed."""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet, self.experts = nn.Embedding(11, 16), nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3))
        self.outlet = nn.Linear(16, 11)

    def forward(self, tokens, n_experts):
        x = self.inlet(tokens)
        x = sum(expert(x) for expert in self.experts[:n_experts])
        return self.outlet(checkpoint(self.block, x, use_reentrant=False))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(4):
        batches = [torch.randint(11, (4, n)) for n in (8, 8, 8)]
        for number, tokens in enumerate(batches):
            with model.no_sync() if number < 2 else contextlib.nullcontext():
                logits = model(tokens, 1 + (number == 0))
                (nn.functional.cross_entropy(logits.flatten(0, 1), (tokens.flatten() + 1) % 11) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
