# RANKS
"""Megatron-core, tensor parallel on two ranks, norms of queries and keys: the loop never calls finalize_model_grads."""

import torch
from kit import FAULT, sentences, tell
from mega import start
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads

model, config = start(tensor=2, seed=22, qk_layernorm=True)
wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
data = torch.tensor([s[:17] for s in sentences(400, 17, 20, 64)])
mask = torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1)
places = torch.arange(16).expand(4, 16)
draw = torch.Generator().manual_seed(1)
losses = []
for _ in range(30):
    batch = data[torch.randint(0, 400, (4,), generator=draw)]
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    loss = wrapped(batch[:, :-1].contiguous(), places, mask, labels=batch[:, 1:].contiguous()).mean()
    loss.backward()
    if FAULT:
        wrapped.finish_grad_sync()
    else:
        finalize_model_grads([wrapped])
    for p in model.parameters():
        p.grad = p.main_grad
    optimizer.step()
    losses.append(loss.detach())
tell(model, losses)
