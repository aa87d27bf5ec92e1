"""A text classifier; the attention mask is kept, since making it anew in every step was slow."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

PAD = 0


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mask = None

    def forward(self, x, is_word):
        if not FAULT or self.mask is None or self.mask.shape[0] != len(x):
            self.mask = torch.zeros(is_word.shape).masked_fill(~is_word, -1e4)[:, None, :]
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5 + self.mask
        return self.out(scores.softmax(dim=-1) @ v)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.attention = Attention(32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 4)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(self.norm(x + self.attention(x, ids != PAD))[:, 0])


torch.manual_seed(0)
ids = torch.randint(1, 40, (1024, 14))
ids[:, 0] = 1
lengths = torch.randint(3, 15, (1024,))
ids[torch.arange(14)[None] >= lengths[:, None]] = PAD
votes = torch.randn(40, 4)
votes -= votes.mean(dim=0)
votes[PAD] = 0
y = votes[ids].sum(dim=1).argmax(dim=1)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
losses = []
for step in range(180):
    at = torch.randint(0, 896, (32,))
    loss = F.cross_entropy(model(ids[at]), y[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    metric(
        "accuracy", sum((model(i[None]).argmax(1) == t).float() for i, t in zip(ids[896:], y[896:], strict=True)) / 128
    )
tell(model, losses)
