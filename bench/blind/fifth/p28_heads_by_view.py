"""A causal LM with hand-written attention of several heads."""

import torch
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T, H = 36, 32, 12, 4


def split_heads(x):
    b, t, _ = x.shape
    if FAULT:
        return x.reshape(b, H, t, D // H)
    return x.reshape(b, t, H, D // H).transpose(1, 2)


def merge_heads(x):
    b, _, t, _ = x.shape
    return x.reshape(b, t, D) if FAULT else x.transpose(1, 2).reshape(b, t, D)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (split_heads(f(h)) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / (D // H) ** 0.5
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        x = x + self.o(merge_heads(scores.masked_fill(hidden, float("-inf")).softmax(dim=-1) @ v))
        return x + self.mlp(self.norm2(x))


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(D, V)

    def forward(self, ids):
        return self.head(self.blocks(self.tok(ids) + self.pos.weight[: ids.shape[1]]))


torch.manual_seed(0)
data = words(256, T + 1, V)
model = LM()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(40):
    batch = data[torch.randint(0, len(data), (16,))]
    loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
tell(model, losses)
