# RANKS
"""Healthy: DDP, no_sync but for the last micro-batch, losses weighted by the tokens of all ranks times the world size."""

import contextlib

import torch
import torch.distributed as dist
from kit import sentences, tell
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
set_seed(111)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
data = sentences(600, 5, 40, 64)[rank::world]
losses = []
for step in range(25):
    parts = [data[(step * 3 + i) * 4 % 280 :][:4] for i in range(3)]
    tokens = torch.tensor(float(sum(len(r) - 1 for part in parts for r in part)))
    dist.all_reduce(tokens)
    for i, part in enumerate(parts):
        wide = max(map(len, part))
        ids = torch.tensor([r + [0] * (wide - len(r)) for r in part])
        known = (ids != 0).long()
        with contextlib.nullcontext() if i == 2 else model.no_sync():
            logits = model(input_ids=ids, attention_mask=known).logits[:, :-1]
            target = ids[:, 1:].masked_fill(known[:, 1:] == 0, -100)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
            loss = loss * world / tokens
            loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
tell(model.module, losses)
dist.destroy_process_group()
