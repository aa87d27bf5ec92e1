"""A small decoder with nn.MultiheadAttention, a causal mask and padding."""

import math

import torch
import torch.nn as nn


class DecoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask, padding):
        a, _ = self.attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)  # plant: attention a
        x = self.ln1(x + a)
        return self.ln2(x + self.ff(x))


class LM(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.tok = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(32, d) * 0.02)
        self.layers = nn.ModuleList([DecoderLayer(d, 4), DecoderLayer(d, 4)])
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        n = ids.size(1)
        x = self.tok(ids) * math.sqrt(16) + self.pos[:n]  # plant: embedding
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
        for layer in self.layers:
            x = layer(x, mask, ids == 0)
        return self.head(x)


torch.manual_seed(19)
model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(7):  # turn
    ids = torch.randint(1, 20, (6, 10))
    ids[0, 7:] = 0
    logits = model(ids[:, :-1])  # plant: output
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
