"""Masked language model: labels alias the inputs that are masked in place."""

import torch
from transformers import BertConfig, BertForMaskedLM
from c import FAULT, finish

torch.manual_seed(0)
MASK, V = 3, 60
model = BertForMaskedLM(
    BertConfig(
        vocab_size=V,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=24,
    )
)
opt = torch.optim.AdamW(model.parameters(), 2e-3)


def mask_tokens(ids):
    labels = ids if FAULT else ids.clone()  # FAULT: same storage
    chosen = torch.rand(ids.shape) < 0.15
    labels_out = labels
    ids[chosen] = MASK
    labels_out = labels_out.masked_fill(~chosen, -100)
    return ids, labels_out


losses = []
model.train()
for step in range(40):
    start = torch.randint(4, V, (8, 1))
    ids = (start + torch.arange(16) * 2 - 4) % (V - 4) + 4
    inp, labels = mask_tokens(ids)
    loss = model(input_ids=inp, labels=labels).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, model)
