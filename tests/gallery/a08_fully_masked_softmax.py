"""Attention over a sample without any allowed key: softmax of a row of -inf (pytorch#41508)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 3
torch.manual_seed(0)
torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~keep[:, None, :], float("-inf"))
        weights = torch.softmax(scores, dim=-1)  # <- fault
        return self.out(weights @ v)


class Classifier(nn.Module):
    def __init__(self, vocab=20, d=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.attention = Attention(d)
        self.head = nn.Linear(d, 2)

    def forward(self, ids, keep):
        x = self.embed(ids)
        x = x + self.attention(x, keep)
        return self.head(x[:, 0])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for step in range(8):
    ids = torch.randint(0, 20, (6, 8))
    lengths = torch.randint(2, 9, (6,))
    if step == BAD_STEP and not HEALTHY:
        lengths[BAD_SAMPLE] = 0  # an empty document
    keep = torch.arange(8) < lengths[:, None]
    loss = nn.functional.cross_entropy(model(ids, keep), (ids[:, 0] >= 10).long())
    loss.backward()
    grad = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
