"""Healthy: a causal mask of -inf added to attention scores; every row keeps a key."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class CausalModel(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.qkv = nn.Linear(d, 3 * d)
        self.head = nn.Linear(d, vocab)
        self.register_buffer("mask", torch.full((8, 8), float("-inf")).triu(1))

    def forward(self, ids):
        q, k, v = self.qkv(self.embed(ids)).chunk(3, dim=-1)
        weights = torch.softmax(q @ k.transpose(1, 2) / 4.0 + self.mask, dim=-1)
        return self.head(weights @ v)


model = CausalModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for step in range(6):
    ids = torch.randint(0, 20, (4, 8))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f}")
