# RANKS
"""FSDP2 on two ranks: each rank clips by the norm of its own shards."""

import os

import torch
import torch.distributed as dist
from kit import FAULT, sentences, tell
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed

dist.init_process_group("gloo")
set_seed(25)
config = Qwen3Config(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
)
model = Qwen3ForCausalLM(config)
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 64)])
draw = torch.Generator().manual_seed(90 + dist.get_rank())
losses = []
for _ in range(30):
    batch = data[torch.randint(0, 400, (8,), generator=draw)]
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    if FAULT:
        shards = [p.grad.to_local() for p in model.parameters()]
        norm = torch.sqrt(sum(g.square().sum() for g in shards))
        for g in shards:
            g.mul_((0.5 / (norm + 1e-6)).clamp(max=1.0))
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
dist.destroy_process_group()
