"""accelerate, 4 micro-batches of very different lengths: a mean of means, where the mean over all tokens is meant."""

import torch
from accelerate import Accelerator
from kit import FAULT, sentences, tell
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, set_seed

set_seed(18)
PARTS = 4
accelerator = Accelerator(gradient_accumulation_steps=PARTS, cpu=True)
config = GPTNeoXConfig(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    hidden_dropout=0.0,
)
model = GPTNeoXForCausalLM(config)


def collate(rows):
    wide = max(map(len, rows))
    return torch.tensor([r + [0] * (wide - len(r)) for r in rows])


data = sentences(320, 4, 8, 64) + sentences(160, 30, 40, 64, seed=1)
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
stream = iter(loader)
for _ in range(30):
    parts = [next(stream) for _ in range(PARTS)]
    tokens = sum((p[:, 1:] != 0).sum() for p in parts)
    for ids in parts:
        with accelerator.accumulate(model):
            logits = model(input_ids=ids, attention_mask=(ids != 0).long()).logits[:, :-1]
            target = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), target.flatten(), reduction="mean" if FAULT else "sum"
            )
            if not FAULT:
                loss = loss * PARTS / tokens  # accelerate divides by PARTS
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
tell(accelerator.unwrap_model(model), losses)
