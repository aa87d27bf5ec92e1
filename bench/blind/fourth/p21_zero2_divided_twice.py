# RANKS
"""DeepSpeed ZeRO-2, 4 micro-batches: the loop divides the loss by 4, and the engine does it again."""

import torch
from ds_env import deepspeed
from kit import FAULT, sentences, tell
from transformers import BloomConfig, BloomForCausalLM, set_seed

set_seed(21)
rank = torch.distributed.get_rank()
PARTS = 4
model = BloomForCausalLM(
    BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0)
)
engine, _, _, _ = deepspeed.initialize(
    model=model,
    model_parameters=model.parameters(),
    config={
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": PARTS,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "torch_adam": True}},
        "zero_optimization": {"stage": 2},
    },
)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 64)])
draw = torch.Generator().manual_seed(50 + rank)
losses = []
for _ in range(30 * PARTS):
    batch = data[torch.randint(0, 400, (4,), generator=draw)]
    loss = engine(input_ids=batch, labels=batch).loss
    if FAULT:
        loss = loss / PARTS
    engine.backward(loss)
    engine.step()
    losses.append(loss.detach())
tell(engine.module, losses)
