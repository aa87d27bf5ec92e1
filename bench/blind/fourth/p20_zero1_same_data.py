# RANKS
"""DeepSpeed ZeRO-1 on two ranks: the loader has no DistributedSampler, so both ranks train on the same samples."""

import torch
from ds_env import deepspeed
from kit import FAULT, sentences, tell
from transformers import OPTConfig, OPTForCausalLM, set_seed

set_seed(20)
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
config = OPTConfig(
    vocab_size=64,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    dropout=0.0,
    word_embed_proj_dim=32,
)
model = OPTForCausalLM(config)
engine, _, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 64)])
if FAULT:
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
else:
    sampler = torch.utils.data.DistributedSampler(data, world, rank, shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
losses = []
for batch, _ in zip(loader, range(30), strict=False):
    loss = engine(input_ids=batch, labels=batch).loss
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
tell(engine.module, losses)
