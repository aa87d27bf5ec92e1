# RANKS
"""Healthy: FSDP2, bf16 compute with float32 sums, accumulation without sync but for the last, clipping, dropout differs by rank."""

import os

import torch
import torch.distributed as dist
from kit import sentences, tell
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

dist.init_process_group("gloo")
rank = dist.get_rank()
set_seed(116)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.transformer.h:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 64)])
torch.manual_seed(500 + rank)
losses = []
for _ in range(25):
    for part in range(2):
        model.set_requires_gradient_sync(part == 1)
        batch = data[torch.randint(0, 400, (8,))]
        loss = model(input_ids=batch, labels=batch).loss / 2
        loss.backward()
        losses.append(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
tell(model, losses)
dist.destroy_process_group()
