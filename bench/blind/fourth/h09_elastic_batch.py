"""Healthy: the batch doubles twice in the run, by more micro-batches, and the rate goes with its root; weighted by tokens."""

import torch
from kit import sentences, tell
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(109)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=48, n_embd=32, n_layer=2, n_head=4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = sentences(500, 6, 30, 64)
losses, at = [], 0
for step in range(30):
    count = 1 << (step // 10)
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * count**0.5
    rows = [data[(at + i) % 500] for i in range(4 * count)]
    at += 4 * count
    tokens = sum(len(r) - 1 for r in rows)
    total = 0.0
    for i in range(0, len(rows), 4):
        part = rows[i : i + 4]
        wide = max(map(len, part))
        ids = torch.tensor([r + [0] * (wide - len(r)) for r in part])
        known = (ids != 0).long()
        logits = model(input_ids=ids, attention_mask=known).logits[:, :-1]
        target = ids[:, 1:].masked_fill(known[:, 1:] == 0, -100)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum") / tokens
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(total)
tell(model, losses)
